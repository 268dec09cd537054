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
{{- end }}

{{- /* Arguments: image (repository, tag, digest), default tag. */ -}}
{{- define "isoloss.image" -}}
{{- $image := first . -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default (last .) $image.tag }}
{{- end -}}
{{- end }}
