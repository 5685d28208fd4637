"""Block Convolution Orthogonal Parameterization: orthogonal convolutions, the paper's Algorithm 1.

    BCOPConv2d           the layer of the paper
    BCOPConv1d           the complete 1-D family, any component
    BCOPConvTranspose2d  the adjoint, which is the inverse where the channels allow one

Algorithm 1 is `_bcop_taps` below; everything else is arguments and shapes.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isoconv.linalg.bcop import append_pair_from_basis
from isoconv.linalg.matrices import identity_like
from isoconv.nn.convolution import OrthogonalisedConvolution, convolve_same, plain_convolution, same_padding
from isoconv.nn.downsampling import upsample
from isoconv.records import require


def _bcop_taps(H: Tensor, R_P: Iterable[Tensor], R_Q: Iterable[Tensor]) -> Tensor:
    """Algorithm 1, its arguments orthogonalised: W = H □ [P₁; I−P₁] □ [Q₁ I−Q₁] □ …, with P = R_P R_Pᵀ, Q = R_Q R_Qᵀ.

    The taps come before the channels, (…, K, K, c_out, c_in). Rows of taps belong to P, columns to Q.
    """
    W = H[..., None, None, :, :]  # a 1×1 convolution
    for r_p, r_q in zip(R_P, R_Q, strict=True):
        W = append_pair_from_basis(W, r_p, dim=-4)  # W □ [P; I−P]
        W = append_pair_from_basis(W, r_q, dim=-3)  # W □ [Q  I−Q]
    return W


class _BCOP2d(OrthogonalisedConvolution):
    """The parameters of Algorithm 1 for a kernel of `kernel_shape`, and the kernel that they make.

    O is the algorithm's O, (small, large) for the two channel counts; MN holds M₁, N₁, …, M_{K−1}, N_{K−1} in one tensor,
    (2(K−1), large, ⌊large/2⌋), so that they are orthogonalised in one batch. The algorithm assumes c_in ≥ c_out; otherwise
    the kernel is built for the swapped channels and transposed. MN is None where there is nothing to choose (K = 1, or one
    channel, whose projectors have rank 0).
    """

    O: nn.Parameter
    MN: nn.Parameter | None

    def _make_parameters(self, factory: dict[str, Any]) -> None:
        c_out, c_in, taps, _ = self.kernel_shape
        small, large = sorted((c_out, c_in))
        self.O = nn.Parameter(torch.empty(small, large, **factory))
        has_choice = taps > 1 and large > 1
        self.MN = nn.Parameter(torch.empty(2 * (taps - 1), large, large // 2, **factory)) if has_choice else None
        self._matrix_names = ("O", "MN") if has_choice else ("O",)

    def _build(self, O: Tensor, MN: Tensor | None = None) -> Tensor:
        c_out, c_in, taps, _ = self.kernel_shape
        H = self._orthonormal(O)
        R = O.new_zeros(*O.shape[:-2], 2 * (taps - 1), O.shape[-1], 0) if MN is None else self._orthonormal(MN)
        bases = R.unbind(-3)
        W = _bcop_taps(H, bases[0::2], bases[1::2])
        return (W if c_in >= c_out else W.mT).movedim((-4, -3), (-2, -1)).contiguous()


class BCOPConv2d(_BCOP2d):
    """An orthogonal convolution: every singular value of it as a linear map is 1 (circular padding, any image size).

    Replaces `torch.nn.Conv2d` with "same" padding. `weight` is the kernel (out_channels, in_channels·s², k/s, k/s), applied
    after invertible downsampling by the stride s. `padding_mode="zeros"` is still 1-Lipschitz, but not orthogonal.

    orthogonalisation : "manifold" (fast, the default) or "bjorck" (the paper's own; see `isoconv.nn.built_weight`)
    frozen : not trained; the paper's BCOP-Fixed

    >>> layer = BCOPConv2d(3, 16, 3)
    >>> layer(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 16, 32, 32])
    """

    def transposed(self) -> "BCOPConvTranspose2d":
        """Return the adjoint of this layer's linear part, sharing its parameters, without a bias.

        It undoes the layer exactly where out_channels ≥ in_channels·s²: `layer.transposed()(layer(x) - bias) = x`.
        """
        sizes = (self.out_channels, self.in_channels, self.kernel_size, self.stride)
        options: dict[str, Any] = {"padding_mode": self.padding_mode, "orthogonalisation": self.orthogonalisation}
        adjoint = BCOPConvTranspose2d(*sizes, bias=False, device="meta", **options)
        adjoint.O, adjoint.MN, adjoint.frozen = self.O, self.MN, self.frozen
        return adjoint.train(self.training)


class BCOPConvTranspose2d(_BCOP2d):
    """The adjoint of `BCOPConv2d(out_channels, in_channels, kernel_size, stride)`: images grow by the stride.

    Replaces `torch.nn.ConvTranspose2d`. `weight` is the kernel of that convolution, (in_channels, out_channels·s², k/s,
    k/s), so input channels come first, as in torch's transposed layers.
    """

    @property
    def kernel_shape(self) -> tuple[int, ...]:
        taps = self.kernel_size // self.stride
        return (self.in_channels, self.out_channels * self.stride**2, taps, taps)

    def forward(self, x: Tensor) -> Tensor:
        batch = self._as_batch(x)
        kernel, padding = _adjoint(self.weight)
        y = upsample(convolve_same(batch, kernel, None, self.padding_mode, (padding, padding)), self.stride)
        if self.bias is not None:
            y = y + self.bias[:, None, None]
        return y if x.dim() == batch.dim() else y[0]

    def plain(self) -> nn.Module:
        kernel, padding = _adjoint(self.evaluation_weight())
        bias = None if self.bias is None else self.bias.repeat_interleave(self.stride**2)
        convolution = plain_convolution(kernel, bias, 1, padding, self.padding_mode)
        return convolution if self.stride == 1 else nn.Sequential(convolution, nn.PixelShuffle(self.stride))


class BCOPConv1d(OrthogonalisedConvolution):
    """An orthogonal 1-D convolution, H □ [P₁ I−P₁] □ … □ [P_{K−1} I−P_{K−1}]: with equal channel counts, every one there is.

    Replaces `torch.nn.Conv1d` with "same" padding; `weight` is (out_channels, in_channels·s, k/s).

    ranks : the ranks of the K−1 projectors (K = k/s), one number for all or one each, between 0 and the larger channel
        count c; half of c by default. Their sum, with the sign of det H, is the connected component that the layer lives
        and trains in: there are 2(K−1)c + 2 of them.
    """

    dimensions = 1
    ranks: tuple[int, ...]

    def __init__(self, *arguments: Any, ranks: int | Sequence[int] | None = None, **options: Any) -> None:
        self.ranks = ranks  # type: ignore[assignment]
        super().__init__(*arguments, **options)

    def _make_parameters(self, factory: dict[str, Any]) -> None:
        c_out, c_in, taps = self.kernel_shape
        small, large = sorted((c_out, c_in))
        ranks, count = large // 2 if self.ranks is None else self.ranks, taps - 1
        each = tuple(ranks) if isinstance(ranks, Sequence) else (ranks,) * count
        fits = len(each) == count and all(isinstance(rank, int) and 0 <= rank <= large for rank in each)
        require(fits, f"ranks: {count} numbers between 0 and {large}, or one for all", repr(ranks))
        self.ranks = each
        self.O = nn.Parameter(torch.empty(small, large, **factory))
        # A projector of rank 0 or c has no parameters: it is 0 or I.
        bases = [f"M{i}" for i, rank in enumerate(self.ranks) if 0 < rank < large]
        for name in bases:
            self.register_parameter(name, nn.Parameter(torch.empty(large, self.ranks[int(name[1:])], **factory)))
        self._matrix_names = ("O", *bases)

    def _build(self, O: Tensor, *M: Tensor) -> Tensor:
        c_out, c_in, _ = self.kernel_shape
        large = O.shape[-1]
        bases = iter(M)
        whole = identity_like(O).expand(*O.shape[:-2], -1, -1)
        W = self._orthonormal(O)[..., None, :, :]
        for rank in self.ranks:
            basis = self._orthonormal(next(bases)) if 0 < rank < large else whole[..., :rank]
            W = append_pair_from_basis(W, basis, dim=-3)  # W □ [P  I−P]
        return (W if c_in >= c_out else W.mT).movedim(-3, -1).contiguous()


def _adjoint(weight: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """The kernel and padding of the transposed operator: channels swapped, taps and padding mirrored."""
    before, after = same_padding(weight.shape[-1])
    return weight.transpose(0, 1).flip(2, 3), (after, before)
