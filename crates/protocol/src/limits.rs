//! Limits that both sides of the socket use.

/// The longest request line, in bytes. It has room for a CA bundle of a hundred certificates, and for key and
/// certificate with a few endpoints. A longer line is a bug of the daemon, or an attack on the memory of a root
/// process.
pub const MAX_REQUEST_BYTES: usize = 512 * 1024;

/// The initial size of buffers, which has room for a usual request with two endpoints. A buffer that grows leaves
/// copies of a key in memory, and a larger buffer costs time, because all of it is overwritten when it is dropped.
pub const USUAL_REQUEST_BYTES: usize = 16 * 1024;

/// The longest answer line, in bytes. An answer contains at most one certificate and some names.
pub const MAX_ANSWER_BYTES: usize = 256 * 1024;

/// The most supplementary groups of a request. NFS with `sec=sys` sends only 16 of them to the server; the others count
/// on local file systems.
pub const MAX_GROUPS: usize = 1024;

/// The most concurrent requests, and workers, of one prefix. More requests would only queue at the file server.
pub const MAX_CONCURRENT: usize = 8;

/// The most connections of the daemon, which all its prefixes share.
pub const DAEMON_CONNECTIONS: usize = 256;

/// The most connections that the server accepts: the daemon's connections, and some for commands such as `bursar
/// doctor`.
pub const MAX_CONNECTIONS: usize = DAEMON_CONNECTIONS + 64;

/// The kubeconfig that kubectl uses by default.
pub const USUAL_KUBECONFIG: &str = ".kube/config";

/// The smallest uid that `bursar-homed` ever acts as, whatever the settings are (Debian policy 9.2.2, `UID_MIN`).
pub const UID_FLOOR: u32 = 1000;
/// The smallest gid, whatever the settings are (Debian policy 9.2.2: 0 to 99 are globally allocated to the system).
pub const GID_FLOOR: u32 = 100;
