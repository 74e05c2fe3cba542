#pragma once

// What Nanite is asked to do. The environment is read once (NANITE_MODE), a program's --nanite flag overrides it.

#include <string>

enum nanite_mode : int {
    NANITE_MODE_OFF,     // no device is exposed; an exposed one declines every op: upstream's code path
    NANITE_MODE_OBSERVE, // takes the routed-expert chains, computes them with the CPU backend, counts native routes
};

// Modes of this build, comma separated, in the order above.
const char * nanite_mode_list(void);

const char * nanite_mode_name(nanite_mode mode);

// false: `name` is no mode of this build and *mode is as it was.
bool nanite_mode_parse(const char * name, nanite_mode * mode);

nanite_mode nanite_mode_get(void);
void        nanite_mode_set(nanite_mode mode);

// What NANITE_MODE says when it is no mode of this build; empty when it is fine or unset.
const std::string & nanite_mode_env_error(void);
