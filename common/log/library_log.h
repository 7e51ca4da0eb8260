// What libraries log by themselves.
#pragma once

namespace retroinfer::common {

// gRPC, protobuf and absl write to stderr by themselves: as many lines as a hostile client causes,
// and they block while nobody reads. From now on each logs a line a second at most, through spdlog;
// protobuf's older versions, whose lines have the bytes of clients, not at all. To be called once
// or again, by one thread at a time.
void TakeLogsOfLibraries();

// From now on they log nothing but what ends the process: for commands, whose messages say it all.
void SilenceLibraries();

}  // namespace retroinfer::common
