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

{{- define "isoloss.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "isoloss.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "isoloss.selector" -}}
app.kubernetes.io/name: isoloss-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "isoloss.labels" -}}
{{- include "isoloss.labelsWith" (list . dict) -}}
{{- end }}

{{- /* Arguments: the root, more labels of this object, which win over commonLabels. No key twice: YAML has none. */ -}}
{{- define "isoloss.labelsWith" -}}
{{- $root := first . -}}
{{- $own := fromYaml (include "isoloss.ownLabels" $root) -}}
{{- $more := merge (dict) (last .) $root.Values.commonLabels -}}
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
{{- $image := first . -}}
{{- $_ := required (printf "%s.repository is needed: no images are published, so build and push them first" (last .)) $image.repository -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default (index . 1) $image.tag }}
{{- end -}}
{{- end }}

{{- /* The operator's environment, which `helm test` shares. No variable twice: server-side apply refuses that. */ -}}
{{- define "isoloss.environment" -}}
{{- $names := list -}}
{{- range concat (include "isoloss.ownEnvironment" . | fromYamlArray) .Values.extraEnv -}}
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
{{- $limit := dig "limits" "memory" "" (.Values.resources | default dict) -}}
{{- $has := include "isoloss.mebibytes" $limit -}}
{{- $needs := add 300 (mul (int .Values.fits) (int .Values.fitMemoryMiB)) -}}
{{- if and $has (gt $needs (int64 $has)) -}}
{{- fail (printf "resources.limits.memory: %v is %s MiB, but the operator's 300 MiB and %d fits with fitMemoryMiB %d need %d MiB" $limit $has (int .Values.fits) (int .Values.fitMemoryMiB) $needs) -}}
{{- end -}}
{{- end }}

{{- define "isoloss.ownEnvironment" -}}
- name: ISOLOSS_NAMESPACES
  value: {{ join "," .Values.watchNamespaces | quote }}
- name: ISOLOSS_ALLOWED_STORAGE
  value: {{ toJson .Values.storage.allowedPrefixes | quote }}
- name: ISOLOSS_TRAINER_IMAGE
  value: {{ include "isoloss.image" (list .Values.trainer.image .Chart.AppVersion "trainer.image") | quote }}
- name: ISOLOSS_POD_TEMPLATE
  value: {{ toJson .Values.trainer.podTemplate | quote }}
- name: ISOLOSS_IMAGE_PULL_POLICY
  value: {{ .Values.trainer.image.pullPolicy | quote }}
- name: ISOLOSS_ENFORCE_RESTRICTED_PODS
  value: {{ .Values.trainer.enforceRestrictedPods | quote }}
- name: ISOLOSS_TERMINATION_GRACE_SECONDS
  value: {{ .Values.trainer.terminationGraceSeconds | quote }}
- name: ISOLOSS_LEASE_NAME
  value: {{ include "isoloss.fullname" . }}
- name: ISOLOSS_LEASE_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: ISOLOSS_HTTP_PORT
  value: "8080"
- name: ISOLOSS_LOG_LEVEL
  value: {{ .Values.logLevel }}
- name: ISOLOSS_WORKERS
  value: {{ .Values.workers | quote }}
- name: ISOLOSS_JOB_WRITERS
  value: {{ .Values.jobWriters | quote }}
- name: ISOLOSS_KUEUE
  value: {{ .Values.kueue.enabled | quote }}
- name: ISOLOSS_API_QPS
  value: {{ .Values.apiQps | quote }}
- name: ISOLOSS_API_BURST
  value: {{ .Values.apiBurst | quote }}
- name: ISOLOSS_FIT_MEMORY_MIB
  value: {{ .Values.fitMemoryMiB | quote }}
- name: ISOLOSS_FITS
  value: {{ .Values.fits | quote }}
- name: ISOLOSS_FIT_TIMEOUT_SECONDS
  value: {{ .Values.fitTimeoutSeconds | quote }}
- name: ISOLOSS_PASS_SECONDS
  value: {{ .Values.passSeconds | quote }}
- name: ISOLOSS_RESYNC_SECONDS
  value: {{ .Values.resyncSeconds | quote }}
- name: ISOLOSS_IDLE_SECONDS
  value: {{ .Values.idleSeconds | quote }}
- name: ISOLOSS_POD_LOST_SECONDS
  value: {{ .Values.podLostSeconds | quote }}
- name: ISOLOSS_STORE_READERS
  value: {{ .Values.storeReaders | quote }}
- name: ISOLOSS_PER_SWEEP_METRICS
  value: {{ .Values.metrics.perSweep | quote }}
# The root file system is read-only: what writes caches or figures does it here.
- name: HOME
  value: /tmp
- name: MPLCONFIGDIR
  value: /tmp/matplotlib
{{- end }}
