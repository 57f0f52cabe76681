//! Amounts and resources as Kubernetes writes them (`k8s.io/apimachinery/pkg/api/resource`, ResourceQuota `spec.hard`).

/// Resources that are counted, not measured.
const COUNTED: [&str; 10] = [
    "pods",
    "services",
    "services.nodeports",
    "services.loadbalancers",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "count/jobs.batch",
];

/// Resources that are measured.
pub(super) const MEASURED: [&str; 10] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "requests.storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];

/// Whether `text` is a quantity that a limit can be: `16`, `500m`, `8Gi`, `1e3`; not negative.
pub(super) fn is_quantity(text: &str) -> bool {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let decimal = number.bytes().any(|b| b.is_ascii_digit()) && number.matches('.').count() <= 1;
    let exponent = suffix.strip_prefix(['e', 'E']).map(|digits| digits.strip_prefix(['+', '-']).unwrap_or(digits));
    let scientific = exponent.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()));
    decimal
        && (scientific
            || matches!(suffix, "" | "n" | "u" | "m" | "k" | "M" | "G" | "T" | "P" | "E")
            || matches!(suffix, "Ki" | "Mi" | "Gi" | "Ti" | "Pi" | "Ei"))
}

/// Whether what is counted can be `text`: a whole number, also as `1k`.
pub(super) fn is_count(text: &str) -> bool {
    is_quantity(text) && !text.contains('.') && !text.ends_with(['m', 'u', 'n']) && !text.contains("e-")
}

/// Whether a quota counts `resource` instead of measuring it.
pub(super) fn is_counted(resource: &str) -> bool {
    COUNTED.contains(&resource)
        || resource.starts_with("count/")
        || resource.ends_with(".storageclass.storage.k8s.io/persistentvolumeclaims")
}

/// Whether the API server takes `resource` in a quota: a standard one, or one with a domain (`requests.nvidia.com/gpu`).
pub(super) fn is_resource(resource: &str) -> bool {
    let plain = resource.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'/'));
    let bare = resource.strip_prefix("requests.").or_else(|| resource.strip_prefix("limits.")).unwrap_or(resource);
    plain
        && (is_counted(resource)
            || MEASURED.contains(&resource)
            || bare.starts_with("hugepages-")
            || bare.split_once('/').is_some_and(|(domain, name)| domain.contains('.') && !name.is_empty()))
}

/// The resources to guess from when one is misspelt.
pub(super) fn resources() -> Vec<&'static str> {
    COUNTED.iter().chain(&MEASURED).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_as_kubernetes_writes_them() {
        for good in ["16", "0", "500m", "8Gi", "1.5", ".5", "1e3", "2E", "1e-2"] {
            assert!(is_quantity(good), "{good}");
        }
        for bad in ["", "sixteen", "-1", "8GB", "8gi", "1.2.3", ".", "1e", "8 Gi", "+-1"] {
            assert!(!is_quantity(bad), "{bad}");
        }
        assert!(is_count("16") && !is_count("1.5") && !is_count("500m"));
    }

    #[test]
    fn resources_are_those_a_quota_takes() {
        for good in ["pods", "requests.cpu", "count/jobs.batch", "requests.nvidia.com/gpu", "limits.memory"] {
            assert!(is_resource(good), "{good}");
        }
        for bad in ["pod", "requests.cpus", "gpu", "", "Pods"] {
            assert!(!is_resource(bad), "{bad}");
        }
    }
}
