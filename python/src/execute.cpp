#include "execute.h"

#include <string>

namespace cuflash::python {

Array workspace_of(nb::handle allocated, size_t bytes, const Runtime& runtime, dlpack::Device device) {
  Array workspace = array_of(allocated, "workspace", runtime.stream);
  if (workspace.device.type != device.type || workspace.device.id != device.id ||
      workspace.bytes() < static_cast<int64_t>(bytes))
    throw nb::value_error(("allocate: returned " + std::to_string(workspace.bytes()) + " bytes on " +
                           device_text(workspace.device) + " where " + std::to_string(bytes) + " bytes on " +
                           device_text(device) + " were requested")
                              .c_str());
  return workspace;
}

}  // namespace cuflash::python
