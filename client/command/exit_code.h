// What the commands of `retroinfer` return to the shell.
#pragma once

namespace retroinfer::client {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  // the request, the server or a service failed
inline constexpr int kExitUsage = 2;   // flags, settings or files that make no sense
// A command that a signal has ended returns 128 and its number (InterruptWatcher::ExitCode()).

}  // namespace retroinfer::client
