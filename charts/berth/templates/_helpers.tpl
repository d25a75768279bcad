{{/* Labels of every object. */}}
{{- define "berth.labels" -}}
app.kubernetes.io/part-of: berth
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Name, namespace and labels of an object. Arguments: the root and a name. */}}
{{- define "berth.metadata" -}}
name: {{ index . 1 }}
namespace: {{ (index . 0).Release.Namespace }}
labels:
  {{- include "berth.labels" (index . 0) | nindent 2 }}
{{- end }}

{{/* The same for what belongs to the agents. */}}
{{- define "berth.agentMetadata" -}}
name: {{ index . 1 }}
namespace: {{ (index . 0).Values.agent.namespace }}
labels:
  {{- include "berth.labels" (index . 0) | nindent 2 }}
{{- end }}

{{/* Reference of an image. Arguments: the root and `operator` or `agent`. */}}
{{- define "berth.image" -}}
{{- $image := index (index . 0).Values.image (index . 1) -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default (index . 0).Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* The scheduler names of Berth, as a JSON list: the profiles, without those of the extender. */}}
{{- define "berth.schedulerNames" -}}
{{- $names := list -}}
{{- range .Values.profiles -}}
{{- if not (and $.Values.extender.enabled (eq .schedulerName "default-scheduler")) -}}
{{- $names = append $names .schedulerName -}}
{{- end -}}
{{- end -}}
{{- if not $names -}}
{{- fail "profiles: there is no profile for Berth's own pods; allowed is at least one besides that of default-scheduler" -}}
{{- end -}}
{{- toJson $names -}}
{{- end }}

{{/* The setting of other plugins' NICs: name=hundredths, joined by commas. Argument: the map. */}}
{{- define "berth.nics" -}}
{{- $nics := list -}}
{{- range $name, $amount := . }}{{ $nics = append $nics (printf "%s=%d" $name (int $amount)) }}{{ end -}}
{{- join "," $nics -}}
{{- end }}

{{/* The setting of units: name=size, joined by commas. Argument: the map. */}}
{{- define "berth.units" -}}
{{- $units := list -}}
{{- range $name, $size := . }}{{ $units = append $units (printf "%s=%s" $name $size) }}{{ end -}}
{{- join "," $units -}}
{{- end }}

{{/* What happens to pods of default-scheduler that request devices: routed, refused, or extended (placed by kube-scheduler). */}}
{{- define "berth.unnamed" -}}
{{- if .Values.extender.enabled -}}extended{{- else if .Values.routing.enabled -}}routed{{- else -}}refused{{- end -}}
{{- end }}

{{/*
Sets which namespaces a route takes. Arguments: the root, the expressions of a namespace selector, `words` or `devices`.
A namespace with another value of the label is left out where the route is the default.
*/}}
{{- define "berth.route" -}}
{{- $default := (index . 0).Values.routing.default -}}
{{- $of := index . 2 -}}
{{- $others := get (dict "words" (list "disabled" "own") "devices" (list "disabled" "own" "words")) $of -}}
{{- range index . 1 }}
{{- if and (eq .key "berth.dev/routing") (or (eq $default $of) (eq $default "devices")) }}
{{- $_ := set . "operator" "NotIn" }}
{{- $_ := set . "values" $others }}
{{- end }}
{{- end }}
{{- end }}

{{/* An expression that reads the label, with the default route for namespaces without it. Arguments: the root, the expression. */}}
{{- define "berth.routed" -}}
{{- $default := (index . 0).Values.routing.default -}}
{{- index . 1 | replace `"berth.dev/routing"].orValue("")` (printf `"berth.dev/routing"].orValue(%q)` (ternary "" $default (eq $default "own"))) -}}
{{- end }}

{{/* Not empty if other schedulers are kept from Berth's pools. Argument: the root. */}}
{{- define "berth.taint" -}}
{{- $claims := .Values.claims -}}
{{- if ternary (or $claims.drivers $claims.pools) $claims.taint (kindIs "invalid" $claims.taint) }}true{{ end }}
{{- end }}

{{/* Who routes and injects: `policies` or `webhook`. */}}
{{- define "berth.admission" -}}
{{- $served := semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version -}}
{{- if and (eq .Values.admission.by "policies") (not $served) -}}
{{- fail (printf "admission.by: policies need Kubernetes 1.36, this is %s; use webhook or auto" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if ne .Values.admission.by "auto" -}}{{- .Values.admission.by -}}
{{- else if $served -}}policies{{- else -}}webhook{{- end -}}
{{- end }}

{{/* `true` if the webhook runs, else empty. */}}
{{- define "berth.webhook" -}}
{{- if and .Values.operator.enabled (or (eq .Values.validation.by "webhook") .Values.validation.bindings (eq (include "berth.admission" .) "webhook")) -}}true{{- end -}}
{{- end }}

{{/* Objects of a generated file, with this release's namespace and scheduler names. Arguments: the root and the file's name. */}}
{{- define "berth.objects" -}}
{{- $root := index . 0 -}}
{{- $names := include "berth.schedulerNames" $root -}}
{{- $inner := $names | trimPrefix "[" | trimSuffix "]" -}}
{{- $root.Files.Get (printf "files/%s.yaml" (index . 1))
  | required (printf "files/%s.yaml is missing in the chart" (index . 1))
  | replace "berth-system" $root.Release.Namespace
  | replace "berth-agent-system" $root.Values.agent.namespace
  | replace `in ["berth-scheduler"` (printf "in [%s" ($inner | replace "," ", "))
  | replace `"berth-scheduler"` (fromJsonArray $names | first | quote) -}}
{{- end }}

{{/* The keys that other admission adds, as a CEL map. Argument: the root. */}}
{{- define "berth.addedKeys" -}}
{{- $keys := .Values.admission.addedKeys | default dict -}}
{{- range $resource, $listed := $keys }}
{{- range $listed }}
{{- if regexMatch "^([^/]*[.])?berth[.]dev/|^(scheduling|node)[.]koordinator[.]sh/" . }}
{{- fail (printf "admission.addedKeys.%s: %s; allowed are keys that do not decide about devices: none of berth.dev and its subdomains, scheduling.koordinator.sh or node.koordinator.sh" $resource .) }}
{{- end }}
{{- end }}
{{- end }}
{{- toJson $keys }}
{{- end }}

{{/* An object as a document, with the release's labels. Arguments: the root, the object, and further labels. */}}
{{- define "berth.document" -}}
{{- $object := deepCopy (index . 1) -}}
{{- range dig "spec" "variables" list $object }}
{{- if eq .name "added" }}{{ $_ := set . "expression" (include "berth.addedKeys" (index $ 0)) }}{{ end }}
{{- end }}
{{- $labels := merge (deepCopy (index . 2)) (include "berth.labels" (index . 0) | fromYaml) (default dict $object.metadata.labels) -}}
{{- $_ := set $object.metadata "labels" $labels }}
---
{{ toYaml $object }}
{{- end }}

{{/* Not empty if pods can ask for limits of their shares. Argument: the root. */}}
{{- define "berth.isolation" -}}
{{- if or .Values.isolation.mps.enabled .Values.isolation.hamiCore.enabled }}true{{ end }}
{{- end }}

{{/* All objects of a generated file. Arguments: the root and the file's name. */}}
{{- define "berth.documents" -}}
{{- $root := index . 0 -}}
{{- range include "berth.objects" . | fromYamlArray }}
{{- include "berth.document" (list $root . dict) }}
{{- end }}
{{- end }}

{{/* Variables of every container: the API server's address, then those of the values. Arguments: the root and `extraEnv`. */}}
{{- define "berth.env" -}}
{{- with (index . 0).Values.apiServer }}
{{- if .host }}
- name: KUBERNETES_SERVICE_HOST
  value: {{ .host | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ .port | quote }}
{{- end }}
{{- end }}
{{- with index . 1 }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Where pods run and with which images. Arguments: the root, the part's values and the label of its pods. */}}
{{- define "berth.pod" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
enableServiceLinks: false # a Service named berth-… would set variables with our prefix
{{- with $values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- if $values.hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
nodeSelector:
  {{- merge (deepCopy ($values.nodeSelector | default dict)) (dict "kubernetes.io/os" "linux") | toYaml | nindent 2 }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $values.affinity }}
affinity:
  {{- toYaml $values.affinity | nindent 2 }}
{{- else if index . 2 }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              app.kubernetes.io/name: {{ index . 2 }}
{{- end }}
{{- end }}

{{/* A pod's affinity that also keeps the pod off nodes without a kubelet. Argument: the affinity. */}}
{{- define "berth.nodesWithKubelet" -}}
{{- $own := list (dict "key" "type" "operator" "NotIn" "values" (list "virtual-kubelet")) -}}
{{- $own = append $own (dict "key" "eks.amazonaws.com/compute-type" "operator" "NotIn" "values" (list "fargate")) -}}
{{- $affinity := deepCopy . -}}
{{- $terms := list -}}
{{- /* A node needs to match one term alone, so each term excludes these nodes. */ -}}
{{- range dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" (list dict) $affinity -}}
{{- $terms = append $terms (mergeOverwrite . (dict "matchExpressions" (concat (.matchExpressions | default list) $own))) -}}
{{- end -}}
{{- $required := dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- mergeOverwrite $affinity (dict "nodeAffinity" $required) | toYaml }}
{{- end }}

{{/* Annotations of a hook's object, which is deleted when all objects of the hook have succeeded. Arguments: hooks, weight. */}}
{{- define "berth.hook" -}}
annotations:
  helm.sh/hook: {{ index . 0 }}
  helm.sh/hook-weight: {{ index . 1 | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* Spec of a Job that runs the operator's program. Arguments: the root, its account, the program's arguments, seconds. */}}
{{- define "berth.job" -}}
{{- $root := index . 0 -}}
{{- /* A ResourceQuota for a priority class may not exist yet. */ -}}
{{- $values := omit $root.Values.operator "priorityClassName" "affinity" -}}
backoffLimit: 4
activeDeadlineSeconds: {{ index . 3 }}
template:
  metadata:
    labels:
      app.kubernetes.io/name: {{ index . 1 }}
  spec:
    serviceAccountName: {{ index . 1 }}
    restartPolicy: Never
    {{- include "berth.pod" (list $root $values "") | nindent 4 }}
    containers:
      - name: {{ index . 1 }}
        image: {{ include "berth.image" (list $root "operator") | quote }}
        imagePullPolicy: {{ $root.Values.image.pullPolicy }}
        args:
          {{- toYaml (index . 2) | nindent 10 }}
        {{- with include "berth.env" (list $root $root.Values.operator.extraEnv) }}
        env:
          {{- . | nindent 10 }}
        {{- end }}
        resources:
          requests: {cpu: 20m, memory: 96Mi}
          limits: {memory: 512Mi}
        securityContext:
          {{- toYaml $root.Values.operator.securityContext | nindent 10 }}
{{- end }}
