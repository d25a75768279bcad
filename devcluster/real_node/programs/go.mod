module berth.dev/devcluster/real-node

go 1.26.0
