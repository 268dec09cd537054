{{- define "isoloss.fullname" -}}
{{- default (printf "%s-operator" (trunc 50 .Release.Name | replace "." "-")) .Values.fullnameOverride -}}
{{- end }}

{{- /* A Service's name has 63 characters at most, and a release's up to 53. */ -}}
{{- define "isoloss.serviceName" -}}
{{ include "isoloss.fullname" . | trunc 55 | trimSuffix "-" }}-metrics
{{- end }}

{{- /* Of cluster-wide objects: releases of one name in several namespaces have some each. */ -}}
{{- define "isoloss.clusterName" -}}
{{ .Release.Namespace }}:{{ include "isoloss.fullname" . }}
{{- end }}

{{- /* (context, name): a group of values. Helm takes away one whose key stands in a file without content. */ -}}
{{- define "isoloss.group" -}}
{{- required (printf "%s has no content in the values: leave it out to have its defaults" (last .)) (get (first .).Values (last .)) | toYaml -}}
{{- end }}

{{- define "isoloss.serviceAccountName" -}}
{{- if (include "isoloss.group" (list . "serviceAccount") | fromYaml).create -}}
{{- default (include "isoloss.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "isoloss.namespaces" -}}
{{ join "," (.Values.watchNamespaces | default list) }}
{{- end }}

{{- define "isoloss.selector" -}}
app.kubernetes.io/name: isoloss-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "isoloss.labels" -}}
{{- include "isoloss.labelsWith" (list . dict) -}}
{{- end }}

{{- /* Arguments: the root, more labels of this object, which win over commonLabels. No key twice: YAML has none. */ -}}
{{- define "isoloss.labelsWith" -}}
{{- $root := first . -}}
{{- $own := fromYaml (include "isoloss.ownLabels" $root) -}}
{{- $more := merge (dict) (last . | default dict) ($root.Values.commonLabels | default dict) -}}
{{- range $key, $_ := $more -}}
{{- if or (hasKey $own $key) (hasPrefix "rbac.authorization.k8s.io/" $key) -}}
{{- fail (printf "commonLabels, podLabels and labels: the chart itself sets %s, leave it out" $key) -}}
{{- end -}}
{{- end -}}
{{- toYaml (merge $own $more) -}}
{{- end }}

{{- define "isoloss.ownLabels" -}}
{{ include "isoloss.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: isoloss
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- /* The job label of its metrics, whichever way they are scraped: alerts and dashboard select by it. */ -}}
{{- define "isoloss.metricsJob" -}}
{{ .Release.Namespace }}/{{ include "isoloss.fullname" . }}
{{- end }}

{{- /* Arguments: image (repository, tag, digest), default tag, name of the value. */ -}}
{{- define "isoloss.image" -}}
{{- $image := first . | default dict -}}
{{- $_ := required (printf "%s.repository is needed: no images are published, so build and push them first" (last .)) $image.repository -}}
{{- if contains "://" $image.repository -}}
{{- fail (printf "%s.repository: %s: leave out the scheme" (last .) $image.repository) -}}
{{- end -}}
{{- if regexMatch "[:@][^/]*$" $image.repository -}}
{{- fail (printf "%s.repository: %s has a tag or digest: write it in %s.tag or %s.digest" (last .) $image.repository (last .) (last .)) -}}
{{- end -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default (index . 1) $image.tag }}
{{- end -}}
{{- end }}

{{- /* The operator's environment, which `helm test` shares. No variable twice: server-side apply refuses that. */ -}}
{{- define "isoloss.environment" -}}
{{- $names := list -}}
{{- range concat (include "isoloss.ownEnvironment" . | fromYamlArray) (.Values.extraEnv | default list) -}}
{{- if has .name $names -}}
{{- fail (printf "extraEnv: %s is set by the chart itself, or given twice" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- include "isoloss.ownEnvironment" . }}
{{- with .Values.extraEnv }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{- /* A quantity of memory in MiB; empty if it is none that is known here. */ -}}
{{- define "isoloss.mebibytes" -}}
{{- $text := toString . -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- if and (regexMatch "^[0-9.]+[A-Za-z]*$" $text) (hasKey $units $unit) -}}
{{ divf (mulf (trimSuffix $unit $text | float64) (get $units $unit)) 1048576 | floor | int64 }}
{{- end -}}
{{- end }}

{{- /* Refuses a memory limit that the fits would exceed: the kernel would then end the operator with them. */ -}}
{{- define "isoloss.checkMemory" -}}
{{- $limit := ((.Values.resources).limits).memory | default "" -}}
{{- $has := include "isoloss.mebibytes" $limit -}}
{{- $fits := int (.Values.fits | default 1) -}}
{{- $each := int (.Values.fitMemoryMiB | default 512) -}}
{{- $needs := add 300 (mul $fits $each) -}}
{{- range $kind, $asked := omit (.Values.resources | default dict) "claims" -}}
{{- if not (has $kind (list "limits" "requests")) -}}
{{- fail (printf "resources.%s: must be limits, requests or claims" $kind) -}}
{{- end -}}
{{- range $name, $quantity := $asked -}}
{{- if not (regexMatch "^([0-9.]+([eE][+]?[0-9]+|m|k|[MGTPE]|[KMGTPE]i)?)?$" (toString ($quantity | default ""))) -}}
{{- fail (printf "resources.%s.%s: %v is not a quantity: write %s" $kind $name $quantity (eq $name "cpu" | ternary "2 or 500m" "2Gi or 2G")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $limit (eq $has "0") -}}
{{- fail (printf "resources.limits.memory: %v is in bytes: write %vMi" $limit $limit) -}}
{{- end -}}
{{- if and $has (gt $needs (int64 $has)) -}}
{{- fail (printf "resources.limits.memory: %v is %s MiB, but the operator's 300 MiB and %d fits with fitMemoryMiB %d need %d MiB: raise the limit, or lower fits" $limit $has $fits $each $needs) -}}
{{- end -}}
{{- end }}

{{- /* Refuses a mount without its volume. */ -}}
{{- define "isoloss.checkMounts" -}}
{{- $volumes := list "tmp" -}}
{{- range .Values.extraVolumes -}}{{- $volumes = append $volumes .name -}}{{- end -}}
{{- range .Values.extraVolumeMounts -}}
{{- if not (has .name $volumes) -}}
{{- fail (printf "extraVolumeMounts: %s: extraVolumes has no volume of this name: add it" .name) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* Refuses a prefix that no URI of a resource can have. */ -}}
{{- define "isoloss.checkPrefixes" -}}
{{- range $namespace, $prefixes := (.Values.storage).allowedPrefixes -}}
{{- range $prefixes -}}
{{- if or (not (regexMatch "^((s3|gs)://[A-Za-z0-9][A-Za-z0-9._-]*|file://)(/[^*?\\[\\]%#@\\\\\\s]*)?$" .)) (regexMatch "/\\.\\.(/|$)" .) -}}
{{- fail (printf "storage.allowedPrefixes.%s: %s must be s3://BUCKET/PATH, gs://BUCKET/PATH or file:///PATH, without .. and wildcards" $namespace .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* Refuses what the operator refuses of every sweep: accelerators of another container where the one that trains has none, and
names of resources without a domain. */ -}}
{{- define "isoloss.checkTrainer" -}}
{{- range list "hostNetwork" "hostPID" "hostIPC" -}}
{{- if and (($.Values.trainer).enforceRestrictedPods) (get ((($.Values.trainer).podTemplate).spec | default dict) .) -}}
{{- fail (printf "trainer.podTemplate.spec.%s: must not be true while trainer.enforceRestrictedPods is" .) -}}
{{- end -}}
{{- end -}}
{{- $where := "trainer.podTemplate.spec.containers" -}}
{{- $holder := "" -}}
{{- $trains := false -}}
{{- range ((((.Values.trainer).podTemplate).spec).containers) -}}
{{- $name := .name -}}
{{- range $resource, $count := ((.resources).limits) -}}
{{- if not (regexMatch "/|^(cpu|memory|ephemeral-storage|hugepages-)" $resource) -}}
{{- fail (printf "%s: %s is asked for by %s: write it with its domain, as in nvidia.com/gpu" $where $resource $name) -}}
{{- end -}}
{{- if and (regexMatch "^[^/]*gpu[^/]*/.|/(.*gpu|mig-|tpu|neuron|gaudi|npu|ascend)" (lower $resource)) (ne (toString $count) "0") -}}
{{- if eq $name "trainer" -}}{{- $trains = true -}}{{- else -}}{{- $holder = printf "%s is asked for by %s" $resource $name -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $holder (not $trains) -}}
{{- fail (printf "%s: %s, and the container that trains, which is named trainer, asks for none" $where $holder) -}}
{{- end -}}
{{- end }}

{{- /* A value as text: helm reads numbers as floats, of which the large ones would be written 1e+06. */ -}}
{{- define "isoloss.plain" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- /* A value that is null is left to the operator, whose defaults are the chart's. */ -}}
{{- define "isoloss.ownEnvironment" -}}
- name: ISOLOSS_NAMESPACES
  value: {{ include "isoloss.namespaces" . | quote }}
- name: ISOLOSS_ALLOWED_STORAGE
  value: {{ (.Values.storage).allowedPrefixes | default dict | toJson | quote }}
- name: ISOLOSS_TRAINER_IMAGE
  value: {{ include "isoloss.image" (list (.Values.trainer).image .Chart.AppVersion "trainer.image") | quote }}
- name: ISOLOSS_POD_TEMPLATE
  {{- /* The kubelet makes one of two dollars. */}}
  value: {{ (.Values.trainer).podTemplate | default dict | toJson | replace "$" "$$" | quote }}
- name: ISOLOSS_LEASE_NAME
  value: {{ include "isoloss.fullname" . | quote }}
- name: ISOLOSS_LEASE_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: ISOLOSS_HTTP_PORT
  value: "8080"
{{- $plain := list
  (list "IMAGE_PULL_POLICY" ((.Values.trainer).image).pullPolicy)
  (list "ENFORCE_RESTRICTED_PODS" (.Values.trainer).enforceRestrictedPods)
  (list "TERMINATION_GRACE_SECONDS" (.Values.trainer).terminationGraceSeconds)
  (list "LOG_LEVEL" .Values.logLevel)
  (list "WORKERS" .Values.workers)
  (list "JOB_WRITERS" .Values.jobWriters)
  (list "KUEUE" (.Values.kueue).enabled)
  (list "API_QPS" .Values.apiQps)
  (list "API_BURST" .Values.apiBurst)
  (list "FIT_MEMORY_MIB" .Values.fitMemoryMiB)
  (list "FITS" .Values.fits)
  (list "FIT_TIMEOUT_SECONDS" .Values.fitTimeoutSeconds)
  (list "PASS_SECONDS" .Values.passSeconds)
  (list "RESYNC_SECONDS" .Values.resyncSeconds)
  (list "IDLE_SECONDS" .Values.idleSeconds)
  (list "POD_LOST_SECONDS" .Values.podLostSeconds)
  (list "STORE_READERS" .Values.storeReaders)
  (list "PER_SWEEP_METRICS" (.Values.metrics).perSweep)
}}
{{- range $plain }}
{{- if not (kindIs "invalid" (last .)) }}
- name: ISOLOSS_{{ first . }}
  value: {{ include "isoloss.plain" (last .) | quote }}
{{- end }}
{{- end }}
# The root file system is read-only: what writes caches or figures does it here.
- name: HOME
  value: /tmp
- name: MPLCONFIGDIR
  value: /tmp/matplotlib
{{- end }}
