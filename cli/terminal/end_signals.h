// Signals that end the program.
#pragma once

namespace cuflash::cli {

// From here on SIGINT, SIGTERM and SIGHUP remove the files that are being written, and then end the program as ever. One
// that is ignored, as under nohup, stays so. A command that wants the signal for itself may take it for a while.
void remove_temporary_files_at_end_signals();

}  // namespace cuflash::cli
