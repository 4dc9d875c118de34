// SPDX-License-Identifier: Apache-2.0
// The scenarios of probe_ipc: each starts processes that do as it orders, and prints what they got.
#pragma once

#include <string>

#include "probe_ipc_process.h"

namespace ipc_probe {

// One variable (NAME:VALUE) for the environment of the exporter, and of the importers.
struct Scene {
  std::string for_a;
  std::string for_b;
};

// What processes share, and what they are refused (probe_ipc_sharing.cpp).
void share(const Scene& scene);
void share_with_faults(const Scene& scene);
void two_importers(const Scene&);
void open_twice(const Scene&);
void errors(const Scene&);
void attributes(const Scene&);
void strangers(const Scene&);
void plain_importer(const Scene&);
void refused(const Scene& scene);
void captures(const Scene&);
void many(const Scene&);
void two_devices(const Scene&);
void races(const Scene&);

// Memory that is freed or closed, processes that end or stop, descriptors that are closed
// (probe_ipc_ends.cpp).
void close_waits(const Scene&);
void lease(const std::string& end);
void exporter_dies(bool forked);
void exporter_stops(const Scene&);
void resets(const Scene&);
void flood(const Scene&);
void closes(const Scene&);

}  // namespace ipc_probe
