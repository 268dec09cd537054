{{- define "isoloss.fullname" -}}
{{- default (printf "%s-operator" (trunc 50 .Release.Name)) .Values.fullnameOverride -}}
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
{{ include "isoloss.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: isoloss
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
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
