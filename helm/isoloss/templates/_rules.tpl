{{/*
# Written by `python -m isoloss_operator.generate.crdgen` from isoloss_operator.cluster.rbac; do not edit.
*/}}
{{- define "isoloss.rules" -}}
- apiGroups:
    - isoloss.dev
  resources:
    - scalingsweeps
    - hyperparampredictions
  verbs:
    - get
    - list
    - watch
- apiGroups:
    - isoloss.dev
  resources:
    - scalingsweeps/status
    - hyperparampredictions/status
  verbs:
    - patch
- apiGroups:
    - isoloss.dev
  resources:
    - scalingsweeps/finalizers
    - hyperparampredictions/finalizers
  verbs:
    - update
- apiGroups:
    - batch
  resources:
    - jobs
  verbs:
    - list
    - watch
    - create
    - patch
    - delete
- apiGroups:
    - ''
  resources:
    - pods
  verbs:
    - list
- apiGroups:
    - ''
  resources:
    - configmaps
  verbs:
    - get
    - list
    - create
    - patch
    - delete
- apiGroups:
    - events.k8s.io
  resources:
    - events
  verbs:
    - list
    - create
{{- end }}
{{- define "isoloss.kueueRules" -}}
- apiGroups:
    - kueue.x-k8s.io
  resources:
    - workloads
  verbs:
    - list
{{- end }}
{{- define "isoloss.leaseRules" -}}
- apiGroups:
    - coordination.k8s.io
  resources:
    - leases
  verbs:
    - create
- apiGroups:
    - coordination.k8s.io
  resources:
    - leases
  verbs:
    - get
    - update
  resourceNames:
    - '{{ include "isoloss.fullname" . }}'
{{- end }}
