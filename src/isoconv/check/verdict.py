"""The two ways in which a check ends early. Each carries one line."""


class Invalid(Exception):  # noqa: N818 - a verdict on the certificate, not an error of the program
    """The certificate claims something that is false or that could not be proved."""


class Malformed(Exception):  # noqa: N818
    """The input cannot be read as a certificate, a model or a file of images."""
