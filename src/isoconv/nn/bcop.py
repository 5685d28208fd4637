"""Block Convolution Orthogonal Parameterization: orthogonal convolutions, the paper's Algorithm 1.

    BCOPConv2d           the layer of the paper
    BCOPConv1d           the complete 1-D family, any component
    BCOPConvTranspose2d  the adjoint, which is the inverse where the channels allow one
    orthogonal_conv_     an orthogonal beginning for ordinary convolutions

Algorithm 1 is the loop in `_BCOP._compose`; everything else is arguments and shapes.
"""

import math
from collections.abc import Sequence
from operator import floordiv
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isoconv.errors import require
from isoconv.linalg.bcop import append_pair, append_pair_from_basis, random_projector
from isoconv.linalg.bounds import fold_stride
from isoconv.linalg.spectrum import spread_kernel
from isoconv.nn.built_weight import with_parameters
from isoconv.nn.convolution import (
    OrthogonalisedConvolution,
    Pads,
    chain,
    convolve_same,
    flatten_pads,
    pad_module,
    per_axis,
    plain_convolution,
)
from isoconv.nn.downsampling import unfold_stride, upsample


class _BCOP(OrthogonalisedConvolution):
    """What the orthogonal convolutions share: the shapes of their matrices, and the kernel that these make.

    Note [Strides that do not divide the kernel]
    Once the image is downsampled on the axes where the stride divides the kernel size, strides r ≤ k are left (of those in
    Note [Geometry], `isoconv.nn.convolution`), from c_in to c_out channels. Where all r are 1 the kernel is Algorithm 1's,
    which assumes c_in ≥ c_out; otherwise it is built for the swapped channels and transposed.

    For other r it is the product of two kernels (the AOC construction): the first one's convolution is orthogonal, has
    sizes k − r + 1, and leads to c = max(c_in, ⌊c_out/Πr⌋) channels. The second one's has sizes and strides r, so its
    patches do not overlap, and it is as orthogonal as its matrix O, (c_out, c·Πr). If c_out ≥ c_in·Πr, both preserve norms:
    c ≥ c_in and c_out ≥ c·Πr. If not, then c = c_in, and the adjoints of both do.

    The matrices, for each group its own: O, in Algorithm 1 (small, large) of the two channel counts; bases of the
    projectors, in c dimensions (`large`, in Algorithm 1); and E, (c_in, c), the first kernel's H where c > c_in. (Where they
    are equal, H is an orthogonal matrix, and O takes it up.)
    """

    _last_axes: tuple[int, ...]
    _tap_axes: tuple[int, ...]
    O: nn.Parameter
    E: nn.Parameter | None

    def _make_parameters(self, factory: dict[str, Any]) -> None:
        c_out, c_in, *taps = self._built_shape
        c_out //= self.groups
        self._rest = tuple(map(floordiv, self._own_stride, self._factors))
        block = math.prod(self._rest)
        self._width = c = max(c_in, c_out // block)
        self._swapped = block == 1 and c_out > c_in
        self.O = self._make_matrix(min(c_out, c_in) if block == 1 else c_out, c * block, factory)
        # One pair of projectors along each axis in turn, as in Algorithm 1; where one axis has more, the rest of them.
        pairs = [(axis, k - r) for axis, k, r in zip(self._tap_axes, taps, self._rest, strict=True)]
        self._axes = tuple(axis for turn in range(max(taps)) for axis, count in pairs if turn < count)
        self._make_bases(factory)
        self.E = self._make_matrix(c_in, c, factory) if block > 1 and c > c_in else None
        self._matrix_names += ("E",) if self.E is not None else ()

    def _make_matrix(self, rows: int, columns: int, factory: dict[str, Any]) -> nn.Parameter:
        """Return an empty parameter: a matrix, or one for each group."""
        return nn.Parameter(torch.empty(*(self.groups,) * (self.groups > 1), rows, columns, **factory))

    def _make_bases(self, factory: dict[str, Any]) -> None:
        """Make the bases of the projectors along `_axes`. Name O and all that are parameters in `_matrix_names`."""
        raise NotImplementedError

    def _compose(self, H: Tensor, bases: Sequence[Tensor], E: Tensor | None) -> Tensor:
        """Algorithm 1, its arguments orthogonalised: W = H □ [P₁; I−P₁] □ [Q₁ I−Q₁] □ …, with P = R Rᵀ for each basis R.

        The taps come before the channels, (…, K, K, c_out, c_in). Rows of taps belong to P, columns to Q.
        """
        W = H.unflatten(-1, (self._width, *self._rest)).movedim(self._last_axes, self._tap_axes)
        for axis, basis in zip(self._axes, bases, strict=True):
            W = append_pair_from_basis(W, basis, axis)  # W □ [P; I−P], or W □ [Q  I−Q]
        if E is not None:
            W = W @ E.mT.unflatten(-2, (*(1,) * self.dimensions, self._width))
        W = (W.mT if self._swapped else W).movedim(self._tap_axes, self._last_axes)
        if self.groups > 1:
            W = W.flatten(-3 - self.dimensions, -2 - self.dimensions)
        return self._finish(W).contiguous()


class _BCOP2d(_BCOP):
    """MN holds M₁, N₁, …, M_{K−1}, N_{K−1} in one tensor, (2(K−1), c, ⌊c/2⌋), so that they are orthogonalised in one batch.

    MN is None where there is nothing to choose (K = 1, or one channel, whose projectors have rank 0).
    """

    _last_axes, _tap_axes = (-2, -1), (-4, -3)
    MN: nn.Parameter | None

    def _make_bases(self, factory: dict[str, Any]) -> None:
        count, c = self.groups * len(self._axes), self._width
        has_choice = count > 0 and c > 1
        self.MN = nn.Parameter(torch.empty(count, c, c // 2, **factory)) if has_choice else None
        self._matrix_names = ("O", "MN") if has_choice else ("O",)

    def _build(self, O: Tensor, MN: Tensor | None = None, E: Tensor | None = None) -> Tensor:
        H, count = self._orthonormal(O), len(self._axes)
        R = O.new_zeros(*O.shape[:-2], count, self._width, 0) if MN is None else self._orthonormal(MN)
        if self.groups > 1 and MN is not None:
            R = R.unflatten(-3, (self.groups, count))
        return self._compose(H, R.unbind(-3) if count else (), E if E is None else self._orthonormal(E))


class BCOPConv2d(_BCOP2d):
    """An orthogonal convolution: every singular value of it as a linear map is 1.

    Replaces `torch.nn.Conv2d` and takes its arguments in its order. By default the padding is circular and "same", and the
    layer orthogonal for images of any size that the stride divides; with other arguments it is always 1-Lipschitz, but
    not always orthogonal. The page "Put orthogonal layers into your own model" has a table. `weight` is the kernel that is
    convolved with, (out_channels, in_channels/groups, k, k); or, where one stride s divides the kernel size and nothing is
    dilated, (out_channels, in_channels/groups·s², k/s, k/s), applied after invertible downsampling by s.

    frozen : not trained; the paper's BCOP-Fixed
    orthogonalisation : "manifold" (fast, the default) or "bjorck" (the paper's own; see `isoconv.nn.built_weight`)

    >>> layer = BCOPConv2d(3, 16, 3)
    >>> layer(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 16, 32, 32])
    """

    def transposed(self, output_padding: int | tuple[int, ...] = 0) -> "BCOPConvTranspose2d":
        """Return the adjoint of this layer's linear part, sharing its parameters, without a bias.

        With "same" padding, it undoes the layer exactly where out_channels ≥ in_channels·s²:
        `layer.transposed()(layer(x) - bias) = x`. `output_padding` chooses the size of images, as in torch.
        """
        sizes = (self.out_channels, self.in_channels, self.kernel_size, self.stride, self.padding, output_padding)
        options = {name: getattr(self, name) for name in ("groups", "dilation", "padding_mode", "orthogonalisation")}
        adjoint = BCOPConvTranspose2d(*sizes, bias=False, device="meta", **options)
        adjoint.O, adjoint.MN, adjoint.E, adjoint.frozen = self.O, self.MN, self.E, self.frozen
        return adjoint.train(self.training)


class BCOPConvTranspose2d(_BCOP2d):
    """The adjoint of `BCOPConv2d(out_channels, in_channels, kernel_size, stride, …)`: images grow by the stride.

    Replaces `torch.nn.ConvTranspose2d` and takes its arguments in its order. `weight` is the kernel of that convolution, so
    input channels come first, as in torch's transposed layers.
    """

    _is_adjoint = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str = "same",
        output_padding: int | tuple[int, ...] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int, ...] = 1,
        padding_mode: str = "circular",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        sizes = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups)
        super().__init__(*sizes, bias, padding_mode, device, dtype, **options)
        self.output_padding = per_axis(output_padding, "output_padding", 2, least=0)
        most = [0 if self.padding == "same" else s - 1 for s in self.stride]
        fits = all(p <= limit for p, limit in zip(self.output_padding, most, strict=True))
        require(fits, f"output_padding of at most {most}", output_padding)
        # The image has so many blocks of s pixels more than the input has pixels, and the last block misses so many.
        axes = zip(self.reaches, self.output_padding, self._pads, self.stride, strict=True)
        over = [(r + extra - sum(pads), s) for r, extra, pads, s in axes]
        self._more = (0, 0) if self._same else tuple(-(-n // s) - 1 for n, s in over)
        self._missing = (0, 0) if self._same else tuple(-n % s for n, s in over)
        #: Blocks that the convolution's outputs left out: zeros to its adjoint.
        self._left_out = [(0, more if self.padding_mode == "circular" else 0) for more in self._more]

    def _apply_to(self, batch: Tensor) -> Tensor:
        kernel, pads = self._adjoint(self.weight)
        if not self._same:
            axes = zip(batch.shape[2:], self._more, self.stride, self._missing, strict=True)
            grows = all((n + more) * s > missing for n, more, s, missing in axes)
            require(grows, f"{type(self).__name__}: inputs that give an image", f"size {tuple(batch.shape[2:])}")
            batch = F.pad(batch, flatten_pads(self._left_out))
        y = upsample(convolve_same(batch, kernel, None, self.padding_mode, pads, groups=self.groups), self.stride)
        if any(self._missing):
            y = F.pad(y, flatten_pads([(0, -n) for n in self._missing]))
        return y if self.bias is None else y + self.bias[:, None, None]

    def _adjoint(self, weight: Tensor) -> tuple[Tensor, Pads]:
        """The kernel and padding of the adjoint before upsampling: channels swapped, taps and padding mirrored."""
        before = [first for first, _ in self._pads]
        if not (self.folded and self._same):  # zeros in front, so that padding too is by whole blocks
            weight = spread_kernel(unfold_stride(weight, self.stride) if self.folded else weight, self.dilation)
            lead = [-n % s for n, s in zip(before, self.stride, strict=True)]
            weight = fold_stride(F.pad(weight, flatten_pads([(n, 0) for n in lead])), self.stride)
            before = [(n + zeros) // s for n, zeros, s in zip(before, lead, self.stride, strict=True)]
        swapped = weight.unflatten(0, (self.groups, -1)).transpose(1, 2).flatten(0, 1).flip(2, 3)
        axes = zip(weight.shape[2:], before, self._more, self._left_out, strict=True)
        return swapped, [(taps - 1 - n, n + more - zeros) for taps, n, more, (_, zeros) in axes]

    def plain(self) -> nn.Module:
        """The same function as ordinary torch modules: a convolution and `nn.PixelShuffle`.

        PixelShuffle has one factor for both axes. Two different strides are one `nn.ConvTranspose2d`, of a padded image.
        """
        weight = self.evaluation_weight()
        kernel, pads = self._adjoint(weight)
        left_out, missing = pad_module(self._left_out, "zeros"), [(0, -n) for n in self._missing]
        if len(set(self.stride)) == 1:
            s = self.stride[0]
            bias = None if self.bias is None else self.bias.repeat_interleave(s**2)
            convolution = plain_convolution(kernel, bias, pads, self.padding_mode, groups=self.groups)
            return chain(left_out, convolution, nn.PixelShuffle(s) if s > 1 else None, pad_module(missing, "zeros"))
        sizes: Any = (self.in_channels, self.out_channels, self.kernel_size, self.stride)
        options: dict[str, Any] = {"groups": self.groups, "bias": False, "dilation": self.dilation, "device": "meta"}
        grown = with_parameters(nn.ConvTranspose2d(*sizes, **options), weight, self.bias)
        axes = zip(pads, self._pads, self.reaches, self.stride, self._more, self._left_out, missing, strict=True)
        cut = []  # what the convolution's padding was, and that of the blocks here
        for (ahead, behind), (before, _), reach, s, more, (_, zeros), (_, less) in axes:
            cut.append((-ahead * s - before, before - reach - (behind - more + zeros - 1) * s + less))
        return chain(left_out, pad_module(pads, self.padding_mode), grown, pad_module(cut, "zeros"))


class BCOPConv1d(_BCOP):
    """An orthogonal 1-D convolution, H □ [P₁ I−P₁] □ … □ [P_{K−1} I−P_{K−1}]: with equal channel counts, every one there is.

    Replaces `torch.nn.Conv1d` and takes its arguments in its order; as for `BCOPConv2d`. With one group, and a stride s that
    divides the kernel size, K = k/s.

    ranks : the ranks of the K−1 projectors, one number for all or one each, between 0 and the larger channel count c; half
        of c by default. Their sum, with the sign of det H, is the connected component that the layer lives and trains in:
        there are 2(K−1)c + 2 of them.
    """

    dimensions = 1
    _last_axes, _tap_axes = (-1,), (-3,)
    ranks: tuple[int, ...]

    def __init__(self, *arguments: Any, ranks: int | Sequence[int] | None = None, **options: Any) -> None:
        self.ranks = ranks  # type: ignore[assignment]
        super().__init__(*arguments, **options)

    def _make_bases(self, factory: dict[str, Any]) -> None:
        count, c = len(self._axes), self._width
        ranks = c // 2 if self.ranks is None else self.ranks
        each = tuple(ranks) if isinstance(ranks, Sequence) else (ranks,) * count
        fits = len(each) == count and all(isinstance(rank, int) and 0 <= rank <= c for rank in each)
        require(fits, f"ranks: {count} numbers between 0 and {c}, or one for all", repr(ranks))
        self.ranks = each
        # A projector of rank 0 or c has no parameters: it is 0 or I.
        bases = [f"M{i}" for i, rank in enumerate(self.ranks) if 0 < rank < c]
        for name in bases:
            self.register_parameter(name, self._make_matrix(c, self.ranks[int(name[1:])], factory))
        self._matrix_names = ("O", *bases)

    def _build(self, O: Tensor, *matrices: Tensor) -> Tensor:
        H, *rest = map(self._orthonormal, (O, *matrices))
        E = rest.pop() if self.E is not None else None
        whole = torch.eye(self._width, dtype=O.dtype, device=O.device).expand(*O.shape[:-2], -1, -1)
        trained = iter(rest)
        bases = [next(trained) if 0 < rank < self._width else whole[..., :rank] for rank in self.ranks]
        return self._compose(H, bases, E)


@torch.no_grad()
def orthogonal_conv_(tensor: Tensor, groups: int = 1, generator: torch.Generator | None = None) -> Tensor:
    """Fill the kernel of an `nn.Conv1d` or `nn.Conv2d`, in place, so that the convolution is orthogonal, and return it.

    All singular values are 1 with stride 1 and circular padding that keeps the image's size; with zeros they are at most 1.
    The kernel is a random one of the paper's (H □ [P I−P] □ …), computed in float64. For linear layers there is
    `torch.nn.init.orthogonal_`.

    >>> convolution = nn.Conv2d(3, 16, 3, padding=1, padding_mode="circular")
    >>> orthogonal_conv_(convolution.weight).shape
    torch.Size([16, 3, 3, 3])
    """
    kernel = tensor.dim() in (3, 4) and tensor.numel() > 0 and groups >= 1 and tensor.shape[0] % groups == 0
    got = f"shape {tuple(tensor.shape)} and {groups} groups"
    require(kernel, "a kernel (c_out, c_in, K) or (c_out, c_in, K, K'), its c_out divided by the groups", got)
    for part in tensor.chunk(groups):
        small, large = sorted(part.shape[:2])
        factory: dict[str, Any] = {"dtype": torch.float64, "device": tensor.device}
        taps = nn.init.orthogonal_(torch.empty(small, large, **factory), generator=generator)
        taps = taps[(None,) * (part.dim() - 2)]
        for turn in range(max(part.shape[2:]) - 1):  # one pair along each axis, as long as it is not full
            for axis, size in enumerate(part.shape[2:]):
                if turn < size - 1:
                    rank = (large + turn % 2) // 2  # half, in turns: an odd number of channels stays in the middle
                    projector = random_projector(large, rank, generator=generator, **factory)
                    taps = append_pair(taps, projector, axis)
        part.copy_((taps if part.shape[0] == small else taps.mT).movedim((-2, -1), (0, 1)))
    return tensor
