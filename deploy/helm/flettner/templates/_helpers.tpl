{{- define "flettner.selector" -}}
app.kubernetes.io/name: flettner
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "flettner.metadata" -}}
name: {{ .Release.Name }}
labels:
  {{- include "flettner.selector" . | nindent 2 }}
{{- end }}

{{- define "flettner.proxySelector" -}}
app.kubernetes.io/name: flettner-proxy
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "flettner.proxyMetadata" -}}
name: {{ .Release.Name }}-proxy
labels:
  {{- include "flettner.proxySelector" . | nindent 2 }}
{{- end }}

{{- define "flettner.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "flettner.write" -}}
{{ if ne .Values.mode "advise" }}, create, patch, delete{{ end }}
{{- end }}

{{- define "flettner.accessMode" -}}
{{- $found := lookup "v1" "PersistentVolumeClaim" .Release.Namespace .Release.Name -}}
{{- $usual := ternary "ReadWriteOncePod" "ReadWriteOnce" (semverCompare ">=1.29.0-0" .Capabilities.KubeVersion.Version) -}}
{{- if .Values.persistence.accessMode }}{{ .Values.persistence.accessMode }}
{{- else if $found }}{{ first $found.spec.accessModes }}
{{- else }}{{ $usual }}{{ end }}
{{- end }}
