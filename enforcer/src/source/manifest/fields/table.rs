//! The fields of pods, of the workloads that make pods, and of all that is in them.

/// The version of Kubernetes that [`TABLE`] is of. Fields that versions since 1.28 had and it has no more are in it too.
pub(in crate::source::manifest) const VERSION: &str = "1.37";

/// A type a line, which goes on in the lines that are indented: its name, then its fields. A field with a colon holds
/// objects of the type behind it, or a list of them. What is in the others is not looked at: maps, texts, numbers, and
/// volumes of kinds that are hardly written by hand.
///
/// By the structs and their JSON names in `core/v1`, `apps/v1`, `batch/v1` and `scheduling/v1` of `k8s.io/api` at
/// v0.37.0-beta.0. `Requirement` is what selectors of labels and of nodes have.
pub(super) const TABLE: &str = "\
Affinity: nodeAffinity:NodeAffinity podAffinity:PodAffinity podAntiAffinity:PodAffinity
CSIVolumeSource: driver readOnly fsType volumeAttributes nodePublishSecretRef:LocalObjectReference
Capabilities: add drop
ClusterTrustBundleProjection: name signerName labelSelector:LabelSelector optional path user
ConfigMapEnvSource: name optional
ConfigMapKeySelector: name key optional
ConfigMapProjection: name items:KeyToPath optional
ConfigMapVolumeSource: name items:KeyToPath defaultMode optional defaultUser
Container: name image command args workingDir ports:ContainerPort envFrom:EnvFromSource env:EnvVar
  resources:ResourceRequirements resizePolicy:ContainerResizePolicy restartPolicy
  restartPolicyRules:ContainerRestartRule volumeMounts:VolumeMount volumeDevices:VolumeDevice
  livenessProbe:Probe readinessProbe:Probe startupProbe:Probe lifecycle:Lifecycle terminationMessagePath
  terminationMessagePolicy imagePullPolicy securityContext:SecurityContext stdin stdinOnce tty
ContainerPort: name hostPort containerPort protocol hostIP
ContainerResizePolicy: resourceName restartPolicy
ContainerRestartRule: action exitCodes:ContainerRestartRuleOnExitCodes
ContainerRestartRuleOnExitCodes: operator values
CronJob: apiVersion kind metadata:ObjectMeta spec:CronJobSpec status
CronJobSpec: schedule timeZone startingDeadlineSeconds concurrencyPolicy suspend jobTemplate:JobTemplateSpec
  successfulJobsHistoryLimit failedJobsHistoryLimit
DaemonSet: apiVersion kind metadata:ObjectMeta spec:DaemonSetSpec status
DaemonSetSpec: selector:LabelSelector template:PodTemplateSpec updateStrategy:DaemonSetUpdateStrategy
  minReadySeconds revisionHistoryLimit
DaemonSetUpdateStrategy: type rollingUpdate:RollingUpdateDaemonSet
Deployment: apiVersion kind metadata:ObjectMeta spec:DeploymentSpec status
DeploymentSpec: replicas selector:LabelSelector template:PodTemplateSpec strategy:DeploymentStrategy
  minReadySeconds revisionHistoryLimit paused progressDeadlineSeconds
DeploymentStrategy: type rollingUpdate:RollingUpdateDeployment
DownwardAPIProjection: items:DownwardAPIVolumeFile
DownwardAPIVolumeFile: path fieldRef:ObjectFieldSelector resourceFieldRef:ResourceFieldSelector mode user
DownwardAPIVolumeSource: items:DownwardAPIVolumeFile defaultMode defaultUser
EmptyDirVolumeSource: medium sizeLimit mode
EnvFromSource: prefix configMapRef:ConfigMapEnvSource secretRef:SecretEnvSource
EnvVar: name value valueFrom:EnvVarSource
EnvVarSource: fieldRef:ObjectFieldSelector resourceFieldRef:ResourceFieldSelector
  configMapKeyRef:ConfigMapKeySelector secretKeyRef:SecretKeySelector fileKeyRef:FileKeySelector
EphemeralContainer: name image command args workingDir ports:ContainerPort envFrom:EnvFromSource env:EnvVar
  resources:ResourceRequirements resizePolicy:ContainerResizePolicy restartPolicy
  restartPolicyRules:ContainerRestartRule volumeMounts:VolumeMount volumeDevices:VolumeDevice
  livenessProbe:Probe readinessProbe:Probe startupProbe:Probe lifecycle:Lifecycle terminationMessagePath
  terminationMessagePolicy imagePullPolicy securityContext:SecurityContext stdin stdinOnce tty
  targetContainerName
EphemeralVolumeSource: volumeClaimTemplate:PersistentVolumeClaimTemplate
EvictionResponder: name priority
ExecAction: command
FileKeySelector: volumeName path key optional
GRPCAction: port service mode
HTTPGetAction: path port host scheme httpHeaders:HTTPHeader protocol
HTTPHeader: name value
HostAlias: ip hostnames
HostPathVolumeSource: path type
ImageVolumeSource: reference pullPolicy
Job: apiVersion kind metadata:ObjectMeta spec:JobSpec status
JobSpec: parallelism completions activeDeadlineSeconds podFailurePolicy:PodFailurePolicy
  successPolicy:SuccessPolicy backoffLimit backoffLimitPerIndex maxFailedIndexes selector:LabelSelector
  manualSelector template:PodTemplateSpec ttlSecondsAfterFinished completionMode suspend podReplacementPolicy
  managedBy scheduling
JobTemplateSpec: metadata:ObjectMeta spec:JobSpec
KeyToPath: key path mode user
LabelSelector: matchLabels matchExpressions:Requirement
Lifecycle: postStart:LifecycleHandler preStop:LifecycleHandler stopSignal
LifecycleHandler: exec:ExecAction httpGet:HTTPGetAction tcpSocket:TCPSocketAction sleep:SleepAction
LocalObjectReference: name
NFSVolumeSource: server path readOnly
NodeAffinity: requiredDuringSchedulingIgnoredDuringExecution:NodeSelector
  preferredDuringSchedulingIgnoredDuringExecution:PreferredSchedulingTerm
NodeSelector: nodeSelectorTerms:NodeSelectorTerm
NodeSelectorTerm: matchExpressions:Requirement matchFields:Requirement
ObjectFieldSelector: apiVersion fieldPath
ObjectMeta: name generateName namespace selfLink uid resourceVersion generation creationTimestamp
  deletionTimestamp deletionGracePeriodSeconds labels annotations ownerReferences:OwnerReference finalizers
  managedFields
OwnerReference: apiVersion kind name uid controller blockOwnerDeletion
PersistentVolumeClaimSpec: accessModes selector:LabelSelector resources:VolumeResourceRequirements volumeName
  storageClassName volumeMode dataSource:TypedLocalObjectReference dataSourceRef:TypedObjectReference
  volumeAttributesClassName
PersistentVolumeClaimTemplate: metadata:ObjectMeta spec:PersistentVolumeClaimSpec
PersistentVolumeClaimVolumeSource: claimName readOnly
Pod: apiVersion kind metadata:ObjectMeta spec:PodSpec status
PodAffinity: requiredDuringSchedulingIgnoredDuringExecution:PodAffinityTerm
  preferredDuringSchedulingIgnoredDuringExecution:WeightedPodAffinityTerm
PodAffinityTerm: labelSelector:LabelSelector namespaces topologyKey namespaceSelector:LabelSelector
  matchLabelKeys mismatchLabelKeys
PodCertificateProjection: signerName keyType maxExpirationSeconds credentialBundlePath keyPath
  certificateChainPath userAnnotations user
PodDNSConfig: nameservers searches options:PodDNSConfigOption
PodDNSConfigOption: name value
PodFailurePolicy: rules:PodFailurePolicyRule
PodFailurePolicyOnExitCodesRequirement: containerName operator values
PodFailurePolicyOnPodConditionsPattern: type status
PodFailurePolicyRule: action onExitCodes:PodFailurePolicyOnExitCodesRequirement
  onPodConditions:PodFailurePolicyOnPodConditionsPattern
PodOS: name
PodReadinessGate: conditionType
PodResourceClaim: name resourceClaimName resourceClaimTemplateName source
PodSchedulingGate: name
PodSchedulingGroup: podGroupName
PodSecurityContext: seLinuxOptions:SELinuxOptions windowsOptions runAsUser runAsGroup runAsNonRoot
  supplementalGroups supplementalGroupsPolicy fsGroup sysctls:Sysctl fsGroupChangePolicy
  seccompProfile:SeccompProfile appArmorProfile:SeccompProfile seLinuxChangePolicy
PodSpec: volumes:Volume initContainers:Container containers:Container ephemeralContainers:EphemeralContainer
  restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds dnsPolicy nodeSelector serviceAccountName
  serviceAccount automountServiceAccountToken nodeName hostNetwork hostPID hostIPC shareProcessNamespace
  securityContext:PodSecurityContext imagePullSecrets:LocalObjectReference hostname subdomain
  affinity:Affinity schedulerName tolerations:Toleration hostAliases:HostAlias priorityClassName priority
  dnsConfig:PodDNSConfig readinessGates:PodReadinessGate runtimeClassName enableServiceLinks preemptionPolicy
  overhead topologySpreadConstraints:TopologySpreadConstraint setHostnameAsFQDN os:PodOS hostUsers
  schedulingGates:PodSchedulingGate resourceClaims:PodResourceClaim resources:ResourceRequirements
  hostnameOverride schedulingGroup:PodSchedulingGroup evictionResponders:EvictionResponder workloadRef
PodTemplateSpec: metadata:ObjectMeta spec:PodSpec
PreferredSchedulingTerm: weight preference:NodeSelectorTerm
PriorityClass: apiVersion kind metadata:ObjectMeta value globalDefault description preemptionPolicy
Probe: exec:ExecAction httpGet:HTTPGetAction tcpSocket:TCPSocketAction grpc:GRPCAction initialDelaySeconds
  timeoutSeconds periodSeconds successThreshold failureThreshold terminationGracePeriodSeconds
ProjectedVolumeSource: sources:VolumeProjection defaultMode defaultUser
ReplicaSet: apiVersion kind metadata:ObjectMeta spec:ReplicaSetSpec status
ReplicaSetSpec: replicas minReadySeconds selector:LabelSelector template:PodTemplateSpec
ReplicationController: apiVersion kind metadata:ObjectMeta spec:ReplicationControllerSpec status
ReplicationControllerSpec: replicas minReadySeconds selector template:PodTemplateSpec
Requirement: key operator values
ResourceClaim: name request
ResourceFieldSelector: containerName resource divisor
ResourceRequirements: limits requests claims:ResourceClaim
RollingUpdateDaemonSet: maxUnavailable maxSurge
RollingUpdateDeployment: maxUnavailable maxSurge
RollingUpdateStatefulSetStrategy: partition maxUnavailable
SELinuxOptions: user role type level
SeccompProfile: type localhostProfile
SecretEnvSource: name optional
SecretKeySelector: name key optional
SecretProjection: name items:KeyToPath optional
SecretVolumeSource: secretName items:KeyToPath defaultMode optional defaultUser
SecurityContext: capabilities:Capabilities privileged seLinuxOptions:SELinuxOptions windowsOptions runAsUser
  runAsGroup runAsNonRoot readOnlyRootFilesystem allowPrivilegeEscalation procMount
  seccompProfile:SeccompProfile appArmorProfile:SeccompProfile
ServiceAccountTokenProjection: audience expirationSeconds path user
SleepAction: seconds
StatefulSet: apiVersion kind metadata:ObjectMeta spec:StatefulSetSpec status
StatefulSetOrdinals: start
StatefulSetPersistentVolumeClaimRetentionPolicy: whenDeleted whenScaled
StatefulSetSpec: replicas selector:LabelSelector template:PodTemplateSpec volumeClaimTemplates serviceName
  podManagementPolicy updateStrategy:StatefulSetUpdateStrategy revisionHistoryLimit minReadySeconds
  persistentVolumeClaimRetentionPolicy:StatefulSetPersistentVolumeClaimRetentionPolicy
  ordinals:StatefulSetOrdinals
StatefulSetUpdateStrategy: type rollingUpdate:RollingUpdateStatefulSetStrategy
SuccessPolicy: rules:SuccessPolicyRule
SuccessPolicyRule: succeededIndexes succeededCount
Sysctl: name value
TCPSocketAction: port host
Toleration: key operator value effect tolerationSeconds
TopologySpreadConstraint: maxSkew topologyKey whenUnsatisfiable labelSelector:LabelSelector minDomains
  nodeAffinityPolicy nodeTaintsPolicy matchLabelKeys
TypedLocalObjectReference: apiGroup kind name
TypedObjectReference: apiGroup kind name namespace
Volume: name hostPath:HostPathVolumeSource emptyDir:EmptyDirVolumeSource gcePersistentDisk
  awsElasticBlockStore gitRepo secret:SecretVolumeSource nfs:NFSVolumeSource iscsi glusterfs
  persistentVolumeClaim:PersistentVolumeClaimVolumeSource rbd flexVolume cinder cephfs flocker
  downwardAPI:DownwardAPIVolumeSource fc azureFile configMap:ConfigMapVolumeSource vsphereVolume quobyte
  azureDisk photonPersistentDisk projected:ProjectedVolumeSource portworxVolume scaleIO storageos
  csi:CSIVolumeSource ephemeral:EphemeralVolumeSource image:ImageVolumeSource
VolumeDevice: name devicePath
VolumeMount: name readOnly recursiveReadOnly mountPath subPath mountPropagation subPathExpr bindMountOptions
VolumeProjection: secret:SecretProjection downwardAPI:DownwardAPIProjection configMap:ConfigMapProjection
  serviceAccountToken:ServiceAccountTokenProjection clusterTrustBundle:ClusterTrustBundleProjection
  podCertificate:PodCertificateProjection
VolumeResourceRequirements: limits requests
WeightedPodAffinityTerm: weight podAffinityTerm:PodAffinityTerm
";
