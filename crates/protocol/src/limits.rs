//! Limits that both sides of the socket know.

/// Longest request line, in bytes. A CA bundle of a hundred certificates, key and certificate for a handful of
/// endpoints stay below it; a larger one is an error of ours or an attack on the memory of a root process.
pub const MAX_REQUEST_BYTES: usize = 512 * 1024;

/// Room for a usual request with two endpoints: buffers begin with it, because one that grows leaves copies of a key
/// behind, and do not begin with more, because all of it is overwritten afterwards.
pub const USUAL_REQUEST_BYTES: usize = 16 * 1024;

/// Longest answer line, in bytes: an answer carries at most one certificate and some names.
pub const MAX_ANSWER_BYTES: usize = 256 * 1024;

/// Most supplementary groups of a request; NFS with `sec=sys` carries only 16 of them to the server anyway, the rest
/// is for local file systems.
pub const MAX_GROUPS: usize = 1024;

/// Requests under way at a time for one prefix, and workers of one prefix: more would only queue at the file server.
pub const MAX_CONCURRENT: usize = 8;

/// Connections that the daemon has at most, whatever the number of its prefixes: they share them.
pub const DAEMON_CONNECTIONS: usize = 256;

/// Connections that the server takes: the daemon's, and some of people who ask beside it (`bursar doctor`).
pub const MAX_CONNECTIONS: usize = DAEMON_CONNECTIONS + 64;

/// Where kubectl looks.
pub const USUAL_KUBECONFIG: &str = ".kube/config";

/// Smallest uid that anything is ever done as, whatever the settings say (Debian policy 9.2.2, `UID_MIN`).
pub const UID_FLOOR: u32 = 1000;
/// Smallest gid, whatever the settings say (Debian policy 9.2.2: 0 to 99 are globally allocated to the system).
pub const GID_FLOOR: u32 = 100;
