"""Trained networks for others to run, without isoconv: ONNX files, and plain torch code beside a safetensors file."""

from isoconv.export.onnx_file import export_onnx
from isoconv.export.torch_code import export_torch

__all__ = ["export_onnx", "export_torch"]
