// SPDX-License-Identifier: Apache-2.0
// Memory shared between processes (contract 8), scenario by scenario: starts processes that do as
// it orders (probe_ipc_peer.cpp), makes no CUDA call itself, and prints what they got. scenario=
// names one; a= and b= add one variable (NAME:VALUE) to the environment of the exporter or the
// importers.
#include <unistd.h>

#include "probe_ipc_scenes.h"

using ipc_probe::Scene;

int main(int argc, char** argv) {
  const std::string scenario = probe::argument(argc, argv, "scenario", "share");
  const Scene scene{probe::argument(argc, argv, "a", ""), probe::argument(argc, argv, "b", "")};
  char path[4096] = {};
  if (readlink("/proc/self/exe", path, sizeof path - 1) < 0) return 1;
  ipc_probe::self = path;
  const struct {
    const char* name;
    void (*play)(const Scene&);
  } scenarios[] = {{"share", ipc_probe::share},
                   {"faults", ipc_probe::share_with_faults},
                   {"two", ipc_probe::two_importers},
                   {"twice", ipc_probe::open_twice},
                   {"errors", ipc_probe::errors},
                   {"attributes", ipc_probe::attributes},
                   {"close-waits", ipc_probe::close_waits},
                   {"lease-close", [](const Scene&) { ipc_probe::lease("close"); }},
                   {"lease-kill", [](const Scene&) { ipc_probe::lease("kill"); }},
                   {"lease-kill-forked", [](const Scene&) { ipc_probe::lease("kill-forked"); }},
                   {"exporter-dies", [](const Scene&) { ipc_probe::exporter_dies(false); }},
                   {"exporter-dies-forked", [](const Scene&) { ipc_probe::exporter_dies(true); }},
                   {"exporter-stops", ipc_probe::exporter_stops},
                   {"strangers", ipc_probe::strangers},
                   {"plain-importer", ipc_probe::plain_importer},
                   {"refused", ipc_probe::refused},
                   {"captures", ipc_probe::captures},
                   {"resets", ipc_probe::resets},
                   {"many", ipc_probe::many},
                   {"two-devices", ipc_probe::two_devices},
                   {"races", ipc_probe::races},
                   {"flood", ipc_probe::flood},
                   {"closes", ipc_probe::closes}};
  for (const auto& entry : scenarios) {
    if (scenario != entry.name) continue;
    entry.play(scene);
    probe::say("done", 0);
    return 0;
  }
  return 2;
}
