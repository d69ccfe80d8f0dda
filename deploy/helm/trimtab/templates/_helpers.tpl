{{- define "trimtab.selector" -}}
app.kubernetes.io/name: trimtab
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "trimtab.metadata" -}}
name: {{ .Release.Name }}
labels:
  {{- include "trimtab.selector" . | nindent 2 }}
{{- end }}

{{- define "trimtab.proxySelector" -}}
app.kubernetes.io/name: trimtab-proxy
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "trimtab.proxyMetadata" -}}
name: {{ .Release.Name }}-proxy
labels:
  {{- include "trimtab.proxySelector" . | nindent 2 }}
{{- end }}

{{- define "trimtab.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "trimtab.write" -}}
{{ if ne .Values.mode "advise" }}, create, patch, delete{{ end }}
{{- end }}

{{- define "trimtab.accessMode" -}}
{{- $found := lookup "v1" "PersistentVolumeClaim" .Release.Namespace .Release.Name -}}
{{- $usual := ternary "ReadWriteOncePod" "ReadWriteOnce" (semverCompare ">=1.29.0-0" .Capabilities.KubeVersion.Version) -}}
{{- if .Values.persistence.accessMode }}{{ .Values.persistence.accessMode }}
{{- else if $found }}{{ first $found.spec.accessModes }}
{{- else }}{{ $usual }}{{ end }}
{{- end }}
