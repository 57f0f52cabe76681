//! Parses and compares Kubernetes quantities (`k8s.io/apimachinery/pkg/api/resource`), and knows the resources of a
//! quota (ResourceQuota `spec.hard`).

use std::cmp::Ordering;

/// Resources whose objects are counted.
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

/// Resources that are measured in a unit.
pub const MEASURED: [&str; 10] = [
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

/// The largest amount of a quota, in units of 10^-9. Kubernetes silently lowers larger amounts to it.
const LARGEST: i128 = i64::MAX as i128 * 1_000_000_000;

/// Whether `text` is a quantity that is not negative and that Kubernetes keeps as it is, such as `16`, `500m`, `8Gi` or
/// `1e3`.
#[must_use]
pub fn is_quantity(text: &str) -> bool {
    nanos(text).is_some_and(|amount| amount <= LARGEST)
}

fn has_form(text: &str) -> bool {
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

/// Compares two amounts by value: `1Gi` equals `1024Mi`. Returns `None` if one of them is not a quantity, or is too
/// large to be computed.
#[must_use]
pub fn compare(one: &str, other: &str) -> Option<Ordering> {
    Some(nanos(one)?.cmp(&nanos(other)?))
}

/// Returns the sum of two amounts. If both have the same unit and the sum is a whole number of that unit, the sum has
/// the unit too. Otherwise, the sum has the largest of the units 1, `m` and `n` that gives a whole number. Returns
/// `None` if [`compare`] does.
#[must_use]
pub fn sum(one: &str, other: &str) -> Option<String> {
    let sum = nanos(one)?.checked_add(nanos(other)?)?;
    let suffix = |text: &str| text.trim_start_matches(|c: char| c.is_ascii_digit()).to_owned();
    let unit = suffix(one);
    let shared = (unit == suffix(other)).then(|| nanos(&format!("1{unit}"))).flatten();
    for (unit, size) in
        shared.map(|size| (unit.as_str(), size)).into_iter().chain([("", 1_000_000_000), ("m", 1_000_000)])
    {
        if sum % size == 0 {
            return Some(format!("{}{unit}", sum / size));
        }
    }
    Some(format!("{sum}n"))
}

/// Returns the amount in units of 10^-9, which is the precision of Kubernetes.
fn nanos(text: &str) -> Option<i128> {
    if !has_form(text) {
        return None;
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: i128 = format!("0{whole}{fraction}").parse().ok()?;
    let (base, exponent) = match suffix {
        "n" => (10, -9),
        "u" => (10, -6),
        "m" => (10, -3),
        "" => (10, 0),
        "k" => (10, 3),
        "M" => (10, 6),
        "G" => (10, 9),
        "T" => (10, 12),
        "P" => (10, 15),
        "E" => (10, 18),
        "Ki" => (1024, 1),
        "Mi" => (1024, 2),
        "Gi" => (1024, 3),
        "Ti" => (1024, 4),
        "Pi" => (1024, 5),
        "Ei" => (1024, 6),
        exponent => (10, exponent[1..].parse::<i32>().ok()?),
    };
    let power = |base: i128, exponent: i32| base.checked_pow(exponent.unsigned_abs());
    let fraction = i32::try_from(fraction.len()).ok()?;
    let (binary, tens) =
        if base == 1024 { (power(1024, exponent)?, 9 - fraction) } else { (1, 9 + exponent - fraction) };
    let scaled = digits.checked_mul(binary)?;
    if tens >= 0 { scaled.checked_mul(power(10, tens)?) } else { Some(scaled / power(10, tens)?) }
}

/// Whether `text` is a whole number, such as `16` or `1k`.
#[must_use]
pub fn is_count(text: &str) -> bool {
    is_quantity(text) && !text.contains('.') && !text.ends_with(['m', 'u', 'n']) && !text.contains("e-")
}

/// Whether a quota counts `resource` instead of measuring it.
#[must_use]
pub fn is_counted(resource: &str) -> bool {
    COUNTED.contains(&resource)
        || resource.starts_with("count/")
        || resource.ends_with(".storageclass.storage.k8s.io/persistentvolumeclaims")
}

/// Whether the API server accepts `resource` in a quota: a standard resource, or one with a domain
/// (`requests.nvidia.com/gpu`).
#[must_use]
pub fn is_resource(resource: &str) -> bool {
    let plain = resource.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'/'));
    let bare = resource.strip_prefix("requests.").or_else(|| resource.strip_prefix("limits.")).unwrap_or(resource);
    plain
        && (is_counted(resource)
            || MEASURED.contains(&resource)
            || bare.starts_with("hugepages-")
            || bare.split_once('/').is_some_and(|(domain, name)| domain.contains('.') && !name.is_empty()))
}

/// Returns the standard resources, from which a correction of a misspelt name can be suggested.
#[must_use]
pub fn resources() -> Vec<&'static str> {
    COUNTED.iter().chain(&MEASURED).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_those_of_kubernetes() {
        for good in ["9223372036854775807", "16", "0", "500m", "8Gi", "1.5", ".5", "1e3", "2E", "1e-2"] {
            assert!(is_quantity(good), "{good}");
        }
        for bad in [
            "10E",
            "1e400",
            "9223372036854775808",
            "",
            "sixteen",
            "-1",
            "8GB",
            "8gi",
            "1.2.3",
            ".",
            "1e",
            "8 Gi",
            "+-1",
        ] {
            assert!(!is_quantity(bad), "{bad}");
        }
        assert!(is_count("16") && !is_count("1.5") && !is_count("500m"));
    }

    #[test]
    fn amounts_compare_by_value() {
        for (one, other) in
            [("1Gi", "1024Mi"), ("0.5", "500m"), ("2", "2000m"), ("1e3", "1k"), ("1.5Ki", "1536"), ("0", "0m")]
        {
            assert_eq!(compare(one, other), Some(Ordering::Equal), "{one} {other}");
        }
        for (less, more) in [("16", "32"), ("1G", "1Gi"), ("999m", "1"), ("1e-2", "1"), ("8Ei", "10E"), ("0", "1n")] {
            assert_eq!(compare(less, more), Some(Ordering::Less), "{less} {more}");
        }
        assert_eq!(compare("1", "many"), None);
        assert_eq!(compare("1e99", "1"), None);
    }

    #[test]
    fn sums_keep_a_shared_unit() {
        for (one, other, both) in [
            ("16", "4", "20"),
            ("8Gi", "2Gi", "10Gi"),
            ("1Gi", "512Mi", "1610612736"),
            ("1", "500m", "1500m"),
            ("500m", "500m", "1000m"),
            ("0.5", "0.5", "1"),
            ("1k", "1", "1001"),
            ("1n", "1", "1000000001n"),
        ] {
            assert_eq!(sum(one, other).as_deref(), Some(both), "{one} {other}");
            assert_eq!(sum(other, one).and_then(|sum| compare(&sum, both)), Some(Ordering::Equal), "{one} {other}");
        }
        assert_eq!(sum("1", "many"), None);
    }

    #[test]
    fn resources_are_those_that_a_quota_accepts() {
        for good in ["pods", "requests.cpu", "count/jobs.batch", "requests.nvidia.com/gpu", "limits.memory"] {
            assert!(is_resource(good), "{good}");
        }
        for bad in ["pod", "requests.cpus", "gpu", "", "Pods"] {
            assert!(!is_resource(bad), "{bad}");
        }
    }
}
