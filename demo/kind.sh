#!/usr/bin/env bash
# Berth as Helm installs it, with two simulated GPUs:
#
#   demo/kind.sh                in a kind cluster (`make kind`); it needs Docker, kind, kubectl and helm
#   demo/kind.sh devcluster     on a real node of the development cluster (`make trial`), as root on Debian 12
#
# Both create the cluster berth, build the images, and take the same steps.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly PYTHON=${PYTHON:-.venv/bin/python}
readonly CLUSTER=berth NAMESPACE=berth-system AGENTS=berth-agent-system VERSION=0.1.0
readonly OPERATOR=berth.dev/berth-operator:$VERSION AGENT=berth.dev/berth-agent:$VERSION

main() {
    case "${1:-}" in
        "") in_kind ;;
        devcluster) in_devcluster ;;
        *) fail "unknown argument $1; it takes none, or \`devcluster\`" ;;
    esac
}

in_kind() {
    need docker kind kubectl helm
    docker info > /dev/null 2>&1 || fail "Docker does not answer: start it, and check that you may use it"
    create_cluster
    build_images
    steps "kind load docker-image --name $CLUSTER"
}

in_devcluster() {
    step "start the cluster $CLUSTER with a real node" "$PYTHON" -m devcluster up --name "$CLUSTER" --real-node
    step "build the images" "$PYTHON" -m devcluster images .build/images
    "$PYTHON" -m devcluster build helm > /dev/null
    eval "$("$PYTHON" -m devcluster env --name "$CLUSTER")"
    # Its pods use the machine's network, because they have none.
    read -r health metrics < <(free_ports)
    server=$(kubectl config view --minify -o jsonpath='{.clusters[0].cluster.server}')
    server=${server#https://}
    steps load_archive --set=apiServer.host="${server%:*}" --set=apiServer.port="${server##*:}" \
        --set=operator.hostNetwork=true --set=operator.healthPort="$health" --set=operator.metricsPort="$metrics" \
        --set='operator.extraArgs[0]=--debug-port=0' --set=agent.hostNetwork=true --set=agent.metricsPort=0
    echo "Use the cluster with: eval \"\$($PYTHON -m devcluster env)\"; end it with: $PYTHON -m devcluster down"
}

load_archive() {
    local name=${1##*/}
    "$PYTHON" -m devcluster load --name "$CLUSTER" ".build/images/${name%:*}.tar"
}

free_ports() {
    "$PYTHON" -c 'import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(listener.getsockname()[1] for listener in held))'
}

# The first argument is the command that gives the nodes an image; the others are for helm.
steps() {
    local node load=$1
    shift
    node=$(kubectl get nodes -o jsonpath='{.items[0].metadata.name}')
    step "load the images" load_images "$load"
    step "describe two simulated GPUs for node $node" simulate_gpus "$node"
    step "install the chart" install_chart "$@"
    step "wait until the API server injects new pods" wait_for_injection
    step "create the first pod" kubectl apply -f demo/first-pod.yaml
    step "wait for the GPUs and the pod" wait_for_pod "$node"
    show
}

create_cluster() {
    if kind get clusters 2> /dev/null | grep -qx "$CLUSTER"; then
        step "use the kind cluster $CLUSTER, which exists" kubectl config use-context "kind-$CLUSTER"
    else
        step "create the kind cluster $CLUSTER" kind create cluster --name "$CLUSTER" --wait 120s
    fi
}

build_images() {
    step "build $OPERATOR" docker build --quiet --file images/operator.Dockerfile --tag "$OPERATOR" .
    step "build $AGENT" docker build --quiet --file images/agent.Dockerfile --tag "$AGENT" .
}

load_images() {
    local image
    for image in "$OPERATOR" "$AGENT"; do
        $1 "$image"
    done
}

# The agent's token allows it to write the Device of its own node alone.
simulate_gpus() {
    local fleet="nodes: [{names: $1, profile: a100, gpus: 2}]"
    kubectl create namespace "$AGENTS" --dry-run=client -o yaml | kubectl apply -f -
    kubectl create configmap fleet --namespace "$AGENTS" --from-literal=fleet.yaml="$fleet" --dry-run=client -o yaml |
        kubectl apply -f -
}

install_chart() {
    helm upgrade --install berth charts/berth --namespace "$NAMESPACE" --values demo/kind-values.yaml "$@" \
        --create-namespace --wait --timeout 5m
}

# A pod that is created before the policies are in force lacks the variable, and is never placed.
wait_for_injection() {
    local deadline=$((SECONDS + 120))
    until kubectl create --dry-run=server -f demo/first-pod.yaml -o jsonpath='{.spec.containers[0].env}' |
        grep -q NVIDIA_VISIBLE_DEVICES; do
        ((SECONDS < deadline)) || { echo "no policy or webhook injected a pod within 120 s"; return 1; }
        sleep 1
    done
}

wait_for_pod() {
    kubectl wait --for=create "device/$1" --timeout=180s
    kubectl wait --for=condition=Ready "device/$1" --timeout=180s
    kubectl wait --for=condition=Ready pod/first --timeout=180s || { kubectl describe pod first; return 1; }
}

show() {
    run kubectl get devices
    run kubectl get pods --namespace "$NAMESPACE"
    run kubectl get pods --namespace "$AGENTS"
    run kubectl get pod first \
        -o 'custom-columns=POD:.metadata.name,NODE:.spec.nodeName,GPU:.metadata.annotations.main\.devices\.berth\.dev/visible'
}

# Print a command as a user would type it, and run it.
run() {
    echo "$ $*"
    "$@"
}

# Run a command under a title; show its output only if it fails.
step() {
    local title=$1 output
    shift
    echo "$title ..."
    output=$("$@" 2>&1) || fail "cannot $title:"$'\n'"$output"
}

need() {
    local program
    for program in "$@"; do
        command -v "$program" > /dev/null || fail "$program is not installed, or not on PATH; needed are: $*"
    done
}

fail() {
    echo "kind: $*" >&2
    exit 1
}

main "$@"
