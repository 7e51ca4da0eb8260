{{/* The pod's volumes. */}}
{{- define "retroinfer.volumes" -}}
- name: settings
  configMap:
    name: {{ include "retroinfer.fullname" . }}-settings
- name: sockets
  emptyDir:
    medium: Memory
    sizeLimit: 16Mi
- name: model
  {{- if .Values.model.claim }}
  persistentVolumeClaim:
    claimName: {{ .Values.model.claim }}
    readOnly: {{ not .Values.model.fetch.image }}
  {{- else }}
  emptyDir:
    sizeLimit: {{ .Values.model.volumeSize }}
  {{- end }}
- name: cache
  {{- if .Values.cache.perPod }}
  ephemeral:
    volumeClaimTemplate:
      spec:
        {{- include "retroinfer.cacheVolume" . | nindent 8 }}
  {{- else }}
  persistentVolumeClaim:
    claimName: {{ include "retroinfer.cacheClaim" . }}
  {{- end }}
{{- if and .Values.model.fetch.image .Values.model.fetch.scratchSize }}
- name: scratch
  emptyDir:
    sizeLimit: {{ .Values.model.fetch.scratchSize }}
{{- end }}
{{- if .Values.tenants.secret }}
- name: tenants
  secret: {secretName: {{ .Values.tenants.secret }}, defaultMode: 0440, optional: false}
{{- else if .Values.apiKey.secret }}
- name: api-key
  secret: {secretName: {{ .Values.apiKey.secret }}, defaultMode: 0440, optional: false}
{{- end }}
{{- if .Values.tls.secret }}
- name: tls
  secret: {secretName: {{ .Values.tls.secret }}, defaultMode: 0440, optional: false}
{{- end }}
{{- end -}}
