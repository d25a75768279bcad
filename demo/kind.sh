#!/usr/bin/env bash
# Berth in a kind cluster, with two simulated GPUs: `make kind`. It needs Docker, kind, kubectl and helm.
#
#   demo/kind.sh           create the cluster berth, build the images, then the steps
#   demo/kind.sh steps     only the steps, on the cluster of the current kubeconfig
#
# Variables of the steps: LOAD, the command that gives the nodes an image, and VALUES, more arguments for helm. With them
# tests/node/test_trial.py runs the same steps on the development cluster.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly CLUSTER=berth NAMESPACE=berth-system VERSION=0.1.0
readonly OPERATOR=berth.dev/berth-operator:$VERSION AGENT=berth.dev/berth-agent:$VERSION

main() {
    case "${1:-}" in
        "") need docker kind kubectl helm
            docker info > /dev/null 2>&1 || fail "Docker does not answer: start it, and check that you may use it"
            create_cluster
            build_images
            LOAD="kind load docker-image --name $CLUSTER"
            steps ;;
        steps) need kubectl helm; steps ;;
        *) fail "unknown argument $1; it takes none, or \`steps\`" ;;
    esac
}

steps() {
    local node
    node=$(kubectl get nodes -o jsonpath='{.items[0].metadata.name}')
    step "load the images" load_images
    step "describe two simulated GPUs for node $node" simulate_gpus "$node"
    step "install the chart" install_chart
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
        ${LOAD:?set LOAD to the command that gives the nodes an image} "$image"
    done
}

# The agent's token allows it to write the Device of its own node alone.
simulate_gpus() {
    local fleet="nodes: [{names: $1, profile: a100, gpus: 2}]"
    kubectl create namespace "$NAMESPACE" --dry-run=client -o yaml | kubectl apply -f -
    kubectl create configmap fleet --namespace "$NAMESPACE" --from-literal=fleet.yaml="$fleet" --dry-run=client -o yaml |
        kubectl apply -f -
}

install_chart() {
    # VALUES is split into words on purpose.
    # shellcheck disable=SC2086
    helm upgrade --install berth charts/berth --namespace "$NAMESPACE" --values demo/kind-values.yaml ${VALUES:-} \
        --wait --timeout 5m
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
