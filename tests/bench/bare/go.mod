module berth.dev/tests/bench/bare

go 1.26.0
