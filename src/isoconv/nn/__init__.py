"""Layers: plain `nn.Module`s that take the arguments of the torch layers they replace."""

from isoconv.nn.activations import GroupSort, MaxMin
from isoconv.nn.bcop import BCOPConv1d, BCOPConv2d, BCOPConvTranspose2d
from isoconv.nn.downsampling import InvertibleDownsampling, InvertibleUpsampling
from isoconv.nn.fixed import Abs, Scale
from isoconv.nn.linear import OrthogonalLinear
from isoconv.nn.ossn import OSSNConv2d
from isoconv.nn.plain import plain
from isoconv.nn.reshaped import RKL2NEConv2d, RKOConv2d
from isoconv.nn.standard import StandardConv2d
from isoconv.nn.svcm import SVCMConv2d

__all__ = [
    "Abs",
    "BCOPConv1d",
    "BCOPConv2d",
    "BCOPConvTranspose2d",
    "GroupSort",
    "InvertibleDownsampling",
    "InvertibleUpsampling",
    "MaxMin",
    "OSSNConv2d",
    "OrthogonalLinear",
    "RKL2NEConv2d",
    "RKOConv2d",
    "SVCMConv2d",
    "Scale",
    "StandardConv2d",
    "plain",
]
