"""The declarations of XLA's interface in python/src/xla/xla_ffi_api.h against the header that jax ships."""

import os
import pathlib
import shutil
import subprocess

import pytest

jax = pytest.importorskip("jax", minversion="0.5", reason="jax 0.5 or newer is not installed")

STRUCTS = {
    "Extension": ("XLA_FFI_Extension_Base", "struct_size type next"),
    "Version": ("XLA_FFI_Api_Version", "struct_size extensions:extension_start major:major_version "
                "minor:minor_version"),
    "Metadata": ("XLA_FFI_Metadata", "struct_size version:api_version traits"),
    "MetadataExtension": ("XLA_FFI_Metadata_Extension", "base:extension_base metadata"),
    "CreateErrorArgs": ("XLA_FFI_Error_Create_Args", "struct_size message code:errc"),
    "DestroyErrorArgs": ("XLA_FFI_Error_Destroy_Args", "struct_size error"),
    "GetStreamArgs": ("XLA_FFI_Stream_Get_Args", "struct_size context:ctx stream"),
    "AllocateArgs": ("XLA_FFI_DeviceMemory_Allocate_Args", "struct_size context:ctx size alignment data"),
    "FreeArgs": ("XLA_FFI_DeviceMemory_Free_Args", "struct_size context:ctx size data"),
    "Api": ("XLA_FFI_Api", "struct_size version:api_version create_error:XLA_FFI_Error_Create "
            "destroy_error:XLA_FFI_Error_Destroy get_stream:XLA_FFI_Stream_Get allocate:XLA_FFI_DeviceMemory_Allocate "
            "free:XLA_FFI_DeviceMemory_Free"),
    "Buffer": ("XLA_FFI_Buffer", "struct_size dtype data rank dims"),
    "Text": ("XLA_FFI_ByteSpan", "data:ptr size:len"),
    "Scalar": ("XLA_FFI_Scalar", "dtype value"),
    "Attributes": ("XLA_FFI_Attrs", "struct_size size types names values:attrs"),
    "CallFrame": ("XLA_FFI_CallFrame", "struct_size extensions:extension_start api context:ctx stage arguments:args "
                  "results:rets attributes:attrs"),
}
CONSTANTS = {
    "kMajor": "XLA_FFI_API_MAJOR",
    "kMetadataExtension": "XLA_FFI_Extension_Metadata",
    "kBuffer": "XLA_FFI_ArgType_BUFFER",
    "kScalar": "XLA_FFI_AttrType_SCALAR",
    "kText": "XLA_FFI_AttrType_STRING",
    "kExecute": "XLA_FFI_ExecutionStage_EXECUTE",
    "DataType::boolean": "XLA_FFI_DataType_PRED",
    "DataType::s32": "XLA_FFI_DataType_S32",
    "DataType::s64": "XLA_FFI_DataType_S64",
    "DataType::f16": "XLA_FFI_DataType_F16",
    "DataType::f32": "XLA_FFI_DataType_F32",
    "DataType::f64": "XLA_FFI_DataType_F64",
    "DataType::bf16": "XLA_FFI_DataType_BF16",
    "ErrorCode::invalid_argument": "XLA_FFI_Error_Code_INVALID_ARGUMENT",
    "ErrorCode::resource_exhausted": "XLA_FFI_Error_Code_RESOURCE_EXHAUSTED",
    "ErrorCode::unimplemented": "XLA_FFI_Error_Code_UNIMPLEMENTED",
    "ErrorCode::internal": "XLA_FFI_Error_Code_INTERNAL",
}


def test_the_structs_are_those_of_xla(tmp_path):
    """Offsets, sizes of fields, and constants; our structs may lack members at the end."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    ours = pathlib.Path(__file__).parents[3] / "python" / "src"
    include = pathlib.Path(jax.ffi.include_dir())
    if not compiler or not (include / "xla/ffi/api/c_api.h").exists():
        pytest.skip("needs a C++ compiler and the headers that jax ships")
    lines = ["#include <cstddef>", '#include "xla/xla_ffi_api.h"', "#include <xla/ffi/api/c_api.h>",
             "namespace xla = cuflash::python::xla;"]
    header = (include / "xla/ffi/api/c_api.h").read_text()
    for mine, (theirs, fields) in STRUCTS.items():
        if mine == "Extension" and theirs not in header:
            continue  # before jax 0.6 the extension had no name, and no version sends one
        lines.append(f'static_assert(sizeof(xla::{mine}) <= sizeof({theirs}), "{mine}");')
        for field in fields.split():
            a, b = field.split(":") if ":" in field else (field, field)
            lines.append(f'static_assert(offsetof(xla::{mine}, {a}) == offsetof({theirs}, {b}), "{mine}.{a}");')
            lines.append(f'static_assert(sizeof(xla::{mine}::{a}) <= sizeof({theirs}::{b}), "{mine}.{a}");')
    for theirs, values in (("XLA_FFI_Args", "args"), ("XLA_FFI_Rets", "rets")):
        for a, b in (("struct_size", "struct_size"), ("size", "size"), ("types", "types"), ("values", values)):
            lines.append(f'static_assert(offsetof(xla::Buffers, {a}) == offsetof({theirs}, {b}), "Buffers.{a}");')
    for mine, theirs in CONSTANTS.items():
        lines.append(f'static_assert(static_cast<int>(xla::{mine}) == static_cast<int>({theirs}), "{mine}");')
    source = tmp_path / "structs.cpp"
    source.write_text("\n".join(lines) + "\n")
    command = [compiler, "-std=c++20", "-fsyntax-only", f"-I{ours}", f"-I{include}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
