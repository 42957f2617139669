// provoke            lists the names of all messages
// provoke <name>     prints the status and the message of one
//
// If a message needs another environment, the program starts itself again in it.
#include "tests/docs/provoke.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

using namespace cuflash;
using namespace cuflash::docs;

constexpr const char* kIsSet = "CUFLASH_PROVOKE_ENVIRONMENT";

const char* constant_of(cuflash_status status) {
  switch (status) {
    case CUFLASH_OK: return "CUFLASH_OK";
    case CUFLASH_INVALID_ARGUMENT: return "CUFLASH_INVALID_ARGUMENT";
    case CUFLASH_UNSUPPORTED: return "CUFLASH_UNSUPPORTED";
    case CUFLASH_OUT_OF_MEMORY: return "CUFLASH_OUT_OF_MEMORY";
    case CUFLASH_NO_DEVICE: return "CUFLASH_NO_DEVICE";
    case CUFLASH_INTERNAL: return "CUFLASH_INTERNAL";
  }
  return "unknown";
}

int provoke(const Message& message, char** argv) {
  if (!message.environment.empty() && !std::getenv(kIsSet)) {
    for (const auto& [name, value] : message.environment) ::setenv(name.c_str(), value.c_str(), 1);
    ::setenv(kIsSet, "1", 1);
    ::execv("/proc/self/exe", argv);
    std::perror("execv");
    return 2;
  }
  try {
    message.provoke();
  } catch (const FlashAttentionError& error) {
    std::printf("%s\n%s\n", constant_of(error.status()), error.what());
    return 0;
  }
  std::fprintf(stderr, "%s: the call succeeded\n", message.name);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Message> messages = host_messages();
  for (const auto& more : {cuda_messages(), cache_messages()})
    messages.insert(messages.end(), more.begin(), more.end());
  for (const Message& message : messages) {
    if (argc < 2) std::printf("%s\n", message.name);
    if (argc >= 2 && std::strcmp(argv[1], message.name) == 0) return provoke(message, argv);
  }
  return argc < 2 ? 0 : 2;
}
