#pragma once

// What Nanite says of itself: the document of GET /nanite (schema 1), the same counters as Prometheus text, and the
// report file that a program without an HTTP server leaves behind.

#include <string>

// JSON object: schema, mode, active, reasons, weights, counters, time, layers. `active` is false when a mode other than
// off was asked for and no routed layer has been taken, with the reason; or when the mode is off.
std::string nanite_status_json(void);

// Metrics are named nanite_*; counters end in _total.
std::string nanite_status_metrics(void);

// Write the JSON to the file that NANITE_REPORT names (by way of a temporary beside it). Called when the last backend
// instance goes; does nothing when the variable is unset. A failure is logged.
void nanite_status_write_report(void);
