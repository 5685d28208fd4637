"""Layers: plain `nn.Module`s that take the arguments of the torch layers they replace."""

from typing import TYPE_CHECKING

from isoconv.lazy import lazy_face

if TYPE_CHECKING:
    from isoconv.nn.activations import Abs as Abs
    from isoconv.nn.activations import GroupSort as GroupSort
    from isoconv.nn.activations import Householder as Householder
    from isoconv.nn.activations import MaxMin as MaxMin
    from isoconv.nn.activations import Normalize as Normalize
    from isoconv.nn.activations import Scale as Scale
    from isoconv.nn.aol import AOLConv2d as AOLConv2d
    from isoconv.nn.bcop import BCOPConv1d as BCOPConv1d
    from isoconv.nn.bcop import BCOPConv2d as BCOPConv2d
    from isoconv.nn.bcop import BCOPConvTranspose2d as BCOPConvTranspose2d
    from isoconv.nn.bcop import orthogonal_conv_ as orthogonal_conv_
    from isoconv.nn.bro import BROConv2d as BROConv2d
    from isoconv.nn.built_weight import fixed_weights as fixed_weights
    from isoconv.nn.cayley import CayleyConv2d as CayleyConv2d
    from isoconv.nn.centring import BatchCentering as BatchCentering
    from isoconv.nn.centring import LayerCentering as LayerCentering
    from isoconv.nn.conversion import convert as convert
    from isoconv.nn.convolution import StandardConv2d as StandardConv2d
    from isoconv.nn.cpl import CPLConv2d as CPLConv2d
    from isoconv.nn.downsampling import InvertibleDownsampling as InvertibleDownsampling
    from isoconv.nn.downsampling import InvertibleUpsampling as InvertibleUpsampling
    from isoconv.nn.graph import Add as Add
    from isoconv.nn.graph import Concat as Concat
    from isoconv.nn.graph import ConvexSum as ConvexSum
    from isoconv.nn.graph import Flip as Flip
    from isoconv.nn.graph import Graph as Graph
    from isoconv.nn.graph import Permute as Permute
    from isoconv.nn.graph import Reshape as Reshape
    from isoconv.nn.graph import Residual as Residual
    from isoconv.nn.graph import Slice as Slice
    from isoconv.nn.graph import Translate as Translate
    from isoconv.nn.linear import AOLLinear as AOLLinear
    from isoconv.nn.linear import BROLinear as BROLinear
    from isoconv.nn.linear import CayleyLinear as CayleyLinear
    from isoconv.nn.linear import CPLLinear as CPLLinear
    from isoconv.nn.linear import NormalisedLinear as NormalisedLinear
    from isoconv.nn.linear import OrthogonalLinear as OrthogonalLinear
    from isoconv.nn.linear import SLLLinear as SLLLinear
    from isoconv.nn.methods import ACTIVATIONS as ACTIVATIONS
    from isoconv.nn.methods import METHODS as METHODS
    from isoconv.nn.ossn import OSSNConv2d as OSSNConv2d
    from isoconv.nn.plain_model import plain as plain
    from isoconv.nn.pooling import L2NormPool2d as L2NormPool2d
    from isoconv.nn.pooling import ScaledAvgPool2d as ScaledAvgPool2d
    from isoconv.nn.potential import ConvexPotential2d as ConvexPotential2d
    from isoconv.nn.reshaped import RKL2NEConv2d as RKL2NEConv2d
    from isoconv.nn.reshaped import RKOConv2d as RKOConv2d
    from isoconv.nn.shift import ChannelShift as ChannelShift
    from isoconv.nn.shift import HalfAbs as HalfAbs
    from isoconv.nn.shift import PositionBias as PositionBias
    from isoconv.nn.sll import SLLConv2d as SLLConv2d
    from isoconv.nn.soc import SOCConv2d as SOCConv2d
    from isoconv.nn.svcm import SVCMConv2d as SVCMConv2d

__getattr__, __dir__, __all__ = lazy_face(__name__, __file__)
