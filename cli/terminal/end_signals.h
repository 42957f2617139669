// Signals that end the program.
#pragma once

namespace cuflash::cli {

// From here on SIGINT, SIGTERM, SIGHUP and SIGPIPE remove the files being written before they end the program as usual. An ignored
// signal stays ignored, as under nohup. A command may install its own handler for a while.
void remove_temporary_files_at_end_signals();

}  // namespace cuflash::cli
