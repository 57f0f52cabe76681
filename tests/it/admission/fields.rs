//! Every field of a pod that the API server knows is listed here, with the rule that checks it or the reason why no
//! rule needs to. A new version of Kubernetes with a further field fails this test until somebody judges the field.

use std::collections::BTreeMap;

use serde_json::Value;

use super::site::Site;

/// The start of the reason for a field that a rule or a policy checks. Such a field occurs in an attack.
const CHECKED: [&str; 2] = ["rule ", "policy "];
const PARTS: &str = "its parts are listed here";
const OF_THE_PROCESS: &str = "the process has the rights of its container, whatever it does";
const OF_THE_NAMESPACE: &str = "it names objects of the namespace only";
const OF_THE_POD: &str = "it concerns this pod only";
const POD_SECURITY: &str = "the Pod Security level of the class checks it";
const SELINUX: &str = "Pod Security checks all but the level, which docs/admission.md names";

/// Type, reason, and the fields with this reason.
const FIELDS: &[(&str, &str, &[&str])] = &[
    ("PodSpec", PARTS, &["containers", "initContainers", "ephemeralContainers", "securityContext"]),
    ("PodSpec", "rule uid", &["os"]),
    ("PodSpec", "rule host", &["hostNetwork", "hostPID", "hostIPC"]),
    ("PodSpec", "rule volumes: a source that it does not know is refused", &["volumes"]),
    ("PodSpec", "rule lifetime", &["activeDeadlineSeconds"]),
    (
        "PodSpec",
        "rule scheduling",
        &["nodeName", "priorityClassName", "runtimeClassName", "schedulerName", "schedulingGroup", "tolerations"],
    ),
    ("PodSpec", "policy bursar-tokens", &["serviceAccountName"]),
    ("PodSpec", "Kubernetes copies it to serviceAccountName", &["serviceAccount"]),
    (
        "PodSpec",
        "Kubernetes accepts only the value of the pod's priority class or runtime class",
        &["priority", "preemptionPolicy", "overhead"],
    ),
    (
        "PodSpec",
        "the scheduler chooses a node that the pod tolerates; docs/admission.md says that selectors are not limited",
        &["affinity", "nodeSelector", "topologySpreadConstraints", "schedulingGates"],
    ),
    ("PodSpec", "docs/admission.md says that no rule checks ResourceClaims", &["resourceClaims"]),
    ("PodSpec", "true is the default, and false takes rights away", &["hostUsers"]),
    ("PodSpec", OF_THE_NAMESPACE, &["automountServiceAccountToken", "enableServiceLinks", "imagePullSecrets"]),
    (
        "PodSpec",
        "a name by which other pods of the namespace, or the pod itself, know the pod",
        &["hostname", "hostnameOverride", "subdomain", "setHostnameAsFQDN", "hostAliases", "dnsConfig", "dnsPolicy"],
    ),
    ("PodSpec", "the quota counts it", &["resources"]),
    ("PodSpec", OF_THE_POD, &["readinessGates", "restartPolicy", "shareProcessNamespace"]),
    ("PodSpec", "policy bursar-grace", &["terminationGracePeriodSeconds"]),
    (
        "PodSecurityContext",
        "rule uid",
        &["runAsUser", "runAsGroup", "runAsNonRoot", "fsGroup", "supplementalGroups", "supplementalGroupsPolicy"],
    ),
    ("PodSecurityContext", "rule sysctls", &["sysctls"]),
    ("PodSecurityContext", "rule uid: a pod with this field is for Windows", &["windowsOptions"]),
    ("PodSecurityContext", POD_SECURITY, &["appArmorProfile", "seccompProfile"]),
    ("PodSecurityContext", SELINUX, &["seLinuxOptions"]),
    (
        "PodSecurityContext",
        "it says how volumes get fsGroup and labels",
        &["fsGroupChangePolicy", "seLinuxChangePolicy"],
    ),
    (
        "SecurityContext",
        "rule uid",
        &["allowPrivilegeEscalation", "capabilities", "runAsUser", "runAsGroup", "runAsNonRoot"],
    ),
    ("SecurityContext", "rule host", &["privileged", "procMount", "windowsOptions"]),
    ("SecurityContext", POD_SECURITY, &["appArmorProfile", "seccompProfile"]),
    ("SecurityContext", SELINUX, &["seLinuxOptions"]),
    ("SecurityContext", OF_THE_PROCESS, &["readOnlyRootFilesystem"]),
    ("Container", PARTS, &["ports", "lifecycle", "livenessProbe", "readinessProbe", "startupProbe", "securityContext"]),
    ("Container", "rule images", &["image"]),
    (
        "Container",
        OF_THE_PROCESS,
        &["args", "command", "env", "name", "stdin", "stdinOnce", "tty", "workingDir", "terminationMessagePolicy"],
    ),
    ("Container", "the kubelet mounts a file of its own there", &["terminationMessagePath"]),
    ("Container", OF_THE_NAMESPACE, &["envFrom"]),
    ("Container", "docs/admission.md says that a pod can use an image that its node has", &["imagePullPolicy"]),
    ("Container", "the quota counts it", &["resources"]),
    ("Container", OF_THE_POD, &["resizePolicy", "restartPolicy", "restartPolicyRules"]),
    ("Container", "they name volumes of the pod, which rule volumes checks", &["volumeDevices", "volumeMounts"]),
    ("EphemeralContainer", OF_THE_POD, &["targetContainerName"]),
    ("ContainerPort", "rule host", &["hostPort"]),
    ("ContainerPort", "it has no effect without hostPort", &["hostIP"]),
    ("ContainerPort", OF_THE_POD, &["containerPort", "name", "protocol"]),
    ("Lifecycle", PARTS, &["postStart", "preStop"]),
    ("Lifecycle", OF_THE_PROCESS, &["stopSignal"]),
    ("LifecycleHandler", PARTS, &["httpGet", "tcpSocket"]),
    ("LifecycleHandler", OF_THE_PROCESS, &["exec", "sleep"]),
    ("Probe", PARTS, &["grpc", "httpGet", "tcpSocket"]),
    ("Probe", OF_THE_PROCESS, &["exec"]),
    ("Probe", "policy bursar-grace", &["terminationGracePeriodSeconds"]),
    (
        "Probe",
        OF_THE_POD,
        &["failureThreshold", "initialDelaySeconds", "periodSeconds", "successThreshold", "timeoutSeconds"],
    ),
    ("HTTPGetAction", "rule host", &["host"]),
    ("HTTPGetAction", "the kubelet sends the request to the pod", &["httpHeaders", "path", "port", "scheme"]),
    ("TCPSocketAction", "rule host", &["host"]),
    ("TCPSocketAction", "the kubelet connects to the pod", &["port"]),
    ("GRPCAction", "the kubelet connects to the pod", &["port", "service"]),
    ("EnvVar", OF_THE_PROCESS, &["name", "value"]),
    ("EnvVar", PARTS, &["valueFrom"]),
    ("EnvVarSource", OF_THE_NAMESPACE, &["configMapKeyRef", "secretKeyRef"]),
    ("EnvVarSource", OF_THE_POD, &["fieldRef", "fileKeyRef", "resourceFieldRef"]),
    (
        "VolumeMount",
        "it says where a volume of the pod is mounted",
        &["mountPath", "name", "readOnly", "recursiveReadOnly"],
    ),
    ("VolumeMount", "Kubernetes resolves it within the volume", &["subPath", "subPathExpr"]),
    ("VolumeMount", "Kubernetes accepts Bidirectional for privileged containers only", &["mountPropagation"]),
];

/// Attacks of the webhook's rules, and of the rules that the API server evaluates.
fn attacks() -> String {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/admission/attacks");
    let files = std::fs::read_dir(folder).expect("the folder is readable");
    let texts = files.map(|file| std::fs::read_to_string(file.expect("the folder is readable").path()));
    let mut all: String = texts.map(|text| text.expect("the file is readable")).collect();
    all.push_str(include_str!("server_rules.rs"));
    all.push_str(include_str!("installed.rs"));
    all
}

#[test]
fn every_field_of_a_pod_is_checked_or_harmless() {
    let text = Site::shared().cluster.run(&["get", "--raw", "/openapi/v3/api/v1"], "");
    let document: Value = serde_json::from_str(&text).expect("the document is JSON");
    let fields = |kind: &str| -> Vec<String> {
        let schema = &document["components"]["schemas"][format!("io.k8s.api.core.v1.{kind}")]["properties"];
        let mut fields: Vec<String> = schema.as_object().expect("the type has fields").keys().cloned().collect();
        fields.sort();
        fields
    };
    let mut listed: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (kind, _, names) in FIELDS {
        listed.entry(*kind).or_default().extend(names.iter().map(|name| (*name).to_owned()));
    }
    // An ephemeral container has all fields of a container.
    let of_containers = listed["Container"].clone();
    listed.entry("EphemeralContainer").or_default().extend(of_containers);
    for (kind, mut names) in listed {
        names.sort();
        assert_eq!(names, fields(kind), "{kind}: a field is not listed, or does not exist");
    }
    let attacks = attacks();
    for (kind, reason, names) in FIELDS.iter().filter(|(_, reason, _)| CHECKED.iter().any(|is| reason.starts_with(is)))
    {
        for name in *names {
            assert!(attacks.contains(name), "{kind}.{name}: {reason}, but no attack uses the field");
        }
    }
}
