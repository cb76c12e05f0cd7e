{{/* Name of all objects. */}}
{{- define "triton-pipelines.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/*
Labels by which the pod is found. Name and component are fixed: the NetworkPolicies of the pipelines let the operator in by them.
*/}}
{{- define "triton-pipelines.selectorLabels" -}}
app.kubernetes.io/name: triton-pipelines
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "triton-pipelines.labels" -}}
{{ include "triton-pipelines.selectorLabels" . }}
app.kubernetes.io/part-of: triton-pipelines
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end -}}

{{- define "triton-pipelines.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "triton-pipelines.fullname" .) -}}
{{- else -}}
{{- required "serviceAccount.name is needed with serviceAccount.create=false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "triton-pipelines.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* Triton image per platform family, as the operator takes them. */}}
{{- define "triton-pipelines.images" -}}
{{- $images := list (printf "default=%s" .Values.server.image) -}}
{{- range $family, $image := .Values.server.familyImages -}}
{{- $images = append $images (printf "%s=%s" $family $image) -}}
{{- end -}}
{{- join "," $images -}}
{{- end -}}

{{/* Service accounts in whose name the operator writes, as a JSON list. */}}
{{- define "triton-pipelines.impersonated" -}}
{{- with .Values.operator -}}
{{- concat (list .defaultServiceAccount) .impersonatedServiceAccounts | compact | uniq | toJson -}}
{{- end -}}
{{- end -}}

{{/*
CEL: whether a request comes from the operator, also in the name of another account. What it impersonates in one namespace is limited
in all of them.
*/}}
{{- define "triton-pipelines.isOperator" -}}
{{- $account := printf "system:serviceaccount:%s:%s" .Release.Namespace (include "triton-pipelines.serviceAccountName" .) -}}
request.userInfo.username == {{ $account | squote }}
{{- $impersonated := include "triton-pipelines.impersonated" . -}}
{{- if ne $impersonated "[]" }} || (request.userInfo.username.startsWith('system:serviceaccount:') && request.userInfo.username.split(':')[3] in {{ $impersonated | replace "\"" "'" }})
{{- end -}}
{{- end -}}

{{/* What the operator may do in a namespace with pipelines. */}}
{{- define "triton-pipelines.pipelineRules" -}}
- apiGroups: [tritonpipelines.io]
  resources: [inferencepipelines]
  verbs: [list, watch]
- apiGroups: [tritonpipelines.io]
  resources: [inferencepipelines/status]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch]
# Which Deployment a pod belongs to: the metadata of the ReplicaSet that the pod names, never a list.
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [get]
- apiGroups: [""]
  resources: [services, configmaps]
  verbs: [get, list, watch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch]
# spec.observability: kinds of the Prometheus operator, where the cluster has them.
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors, prometheusrules]
  verbs: [get, list]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- with .Values.rbac.tlsSecrets }}
# spec.server.tls: the operator connects to these pods as a client.
- apiGroups: [""]
  resources: [secrets]
  resourceNames: {{ toJson . }}
  verbs: [get]
{{- end }}
{{- $impersonated := include "triton-pipelines.impersonated" . }}
{{- if ne $impersonated "[]" }}
# The objects of pipelines are written in the name of these accounts.
- apiGroups: [""]
  resources: [serviceaccounts]
  resourceNames: {{ $impersonated }}
  verbs: [impersonate]
{{- end }}
{{- if not .Values.operator.defaultServiceAccount }}
{{ include "triton-pipelines.writeRules" . }}
{{- end }}
{{- end -}}

{{/* What is needed to write the objects of pipelines: by the operator, or by the accounts in whose name it writes. */}}
{{- define "triton-pipelines.writeRules" -}}
# Owner references with blockOwnerDeletion ask for it (admission plugin OwnerReferencesPermissionEnforcement).
- apiGroups: [tritonpipelines.io]
  resources: [inferencepipelines/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, create, update, patch, delete]
- apiGroups: [""]
  resources: [services, configmaps]
  verbs: [get, create, update, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create, update, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, create, update, patch, delete]
# Tuning runs; a Job's template never changes, so none is updated.
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, create, patch, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors, prometheusrules]
  verbs: [get, create, update, patch, delete]
# Written, never read: control keys are derived, not looked up.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, patch, delete]
# Pods of its own Deployments that Kubernetes cannot see to be broken are deleted, so that new ones take their place.
- apiGroups: [""]
  resources: [pods]
  verbs: [delete]
{{- if .Values.rbac.podResize }}
# scaling.cpuResize: their CPU, and nothing else of them, is changed in place.
- apiGroups: [""]
  resources: [pods/resize]
  verbs: [patch]
{{- end }}
{{- end -}}
