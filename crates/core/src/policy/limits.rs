//! `[limits]`: how many changes may happen at once.

/// `[limits]`: how many changes may happen at once. A day is a rolling 24 h.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Tenants suspended in one cycle.
    pub suspend_per_cycle: Limit,
    /// Tenants suspended in a day.
    pub suspend_per_day: Limit,
    /// Tenants suspended in one cycle because a directory marks them as disabled.
    pub disable_per_cycle: Limit,
    /// Tenants suspended in a day because a directory marks them as disabled.
    pub disable_per_day: Limit,
    /// Removals of access in one cycle without a suspension: an account counts once for each adopted namespace, and
    /// once for everything else in a cluster. The causes are the configuration, a label, or an owner's annotation.
    pub remove_access_per_cycle: Limit,
    /// Removals of access in a day, counted in the same way.
    pub remove_access_per_day: Limit,
    /// Namespaces deleted in one cycle.
    pub delete_per_cycle: Limit,
    /// Namespaces deleted in a day.
    pub delete_per_day: Limit,
    /// Members removed in one cycle.
    pub remove_members_per_cycle: Limit,
    /// Members removed in a day.
    pub remove_members_per_day: Limit,
    /// Users disabled in the realm in one cycle.
    pub realm_disable_per_cycle: Limit,
    /// Users disabled in the realm in a day.
    pub realm_disable_per_day: Limit,
    /// Roles taken from users of the realm in one cycle.
    pub realm_remove_roles_per_cycle: Limit,
    /// Roles taken from users of the realm in a day.
    pub realm_remove_roles_per_day: Limit,
    /// Tenants that get their access back in one cycle because a directory shows them again.
    pub resume_per_cycle: Limit,
    /// Tenants that get their access back in a day because a directory shows them again.
    pub resume_per_day: Limit,
    /// Existing tenants to which a policy change is applied in one cycle.
    pub change_per_cycle: Limit,
}

/// A limit: `min(count, max(1, ceil(percent of the class)))`, or just `count` if no percentage is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// The most that is ever allowed.
    pub count: u64,
    /// The share of the class that is allowed, in percent.
    pub percent: Option<u64>,
}

impl Limit {
    /// Returns the amount that the limit allows in a class of `size` tenants.
    #[must_use]
    pub fn allowed(self, size: u64) -> u64 {
        self.percent.map_or(self.count, |percent| self.count.min((size * percent).div_ceil(100).max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_allows_at_least_one_and_at_most_count() {
        let limit = Limit { count: 5, percent: Some(1) };
        assert_eq!([0, 1, 100, 101, 400, 10_000].map(|size| limit.allowed(size)), [1, 1, 1, 2, 4, 5]);
        assert_eq!(Limit { count: 3, percent: None }.allowed(10_000), 3);
    }
}
