{{- define "conch.name" -}}
{{- if contains "conch" .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-conch" .Release.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "conch.selector" -}}
app.kubernetes.io/name: conch
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "conch.labels" -}}
{{ include "conch.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
