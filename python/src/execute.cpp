#include "execute.h"

#include <string>
#include <utility>

namespace cuflash::python {

Workspace allocate_by(const Runtime& runtime, size_t bytes, dlpack::Device device) {
  const nb::object owner(runtime.allocate(bytes));
  Array workspace = array_of(owner, "workspace", runtime.stream);
  if (workspace.device.type != device.type || workspace.device.id != device.id ||
      workspace.bytes() < static_cast<int64_t>(bytes))
    throw nb::value_error(("allocate: returned " + std::to_string(workspace.bytes()) + " bytes on " +
                           device_text(workspace.device) + " where " + std::to_string(bytes) + " bytes on " +
                           device_text(device) + " were requested")
                              .c_str());
  return {owner, std::move(workspace)};
}

void* allocate_with_gil(void* context, size_t bytes) {
  auto& allocation = *static_cast<Allocation*>(context);
  const nb::gil_scoped_acquire acquired;
  try {
    allocation.workspace = allocation.allocate(bytes);
    return allocation.workspace.array.data;
  } catch (...) {
    allocation.failure = std::current_exception();
    return nullptr;
  }
}

}  // namespace cuflash::python
