// What libraries log by themselves.
#pragma once

namespace retroinfer::common {

// gRPC, protobuf and absl would write to stderr, as much as a hostile client makes them, and wait
// for who reads it. From now on they log through spdlog, a line a second at most for each;
// protobuf's older versions, whose lines have the bytes of clients, not at all. To be called once
// or again, by one thread at a time.
void TakeLogsOfLibraries();

// From now on they log nothing but what ends the process: for commands, whose messages say it all.
void SilenceLibraries();

}  // namespace retroinfer::common
