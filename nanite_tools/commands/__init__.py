"""One module a verb: parse, call, render. The logic is in the library beside it."""
