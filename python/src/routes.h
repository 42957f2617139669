// The protocols that turn a Python object into an Array; array.cpp chooses one for each type of object.
#pragma once

#include <string>

#include "array.h"

namespace cuflash::python {

Array array_by_exchange(nb::handle object, const char* name, const dlpack::ExchangeApi& api);
Array array_of_torch(nb::handle tensor, const char* name);
Array array_by_buffer(nb::handle object, const char* name);
Array array_by_dlpack(nb::handle object, const char* name, uintptr_t stream);

// Raises if a tensor's storage ends before its last element: PyTorch allows resizing the storage under a tensor.
void require_storage(const Array& array, nb::handle tensor, const char* name);

// Fills all but the keeper.
Array view_of(const dlpack::Tensor& tensor, const char* name);

std::string text_of(nb::handle object);  // str(object)

void require_rank(int64_t rank, const char* name, int64_t most = 5);
[[noreturn]] void refuse_type(const char* name, const std::string& type);

}  // namespace cuflash::python
