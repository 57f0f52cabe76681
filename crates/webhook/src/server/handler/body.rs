//! Reads the body of a review within limits, and drops a body that is not needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bursar_core::admission::review::Review;
use bursar_core::admission::value::Json;
use bursar_core::admission::{Operation, POD_BYTES, TOO_LARGE};
use http::{StatusCode, Version};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Bytes, Incoming};

use crate::server::room::BODY_WITHIN;

/// The largest body that is read. A review of an update contains the object twice. etcd accepts 1.5 MiB for one object,
/// and JSON may write one byte as six (`\u003c`). The rest of the limit is for the other fields of the review.
pub const BODY_LIMIT: usize = 2 * 6 * (3 << 19) + (2 << 20);

/// The most values of one body, as [`values`] counts them. A parsed value takes up to 120 bytes, which for a list or an
/// object with one value is 34 times its text.
pub(super) const VALUES: usize = 1 << 20;

/// The divisor of [`BODY_LIMIT`] and [`VALUES`] for reviews of a creation. These may use only half of the limits, so
/// that an update of the created object can always be read.
const OF_A_CREATION: usize = 2;

pub(super) const TOO_MANY: &str = "the body has more than 1,048,576 values";

/// Reads a whole body, for which `length` bytes are reserved.
pub(super) async fn read(
    version: Version,
    mut body: Incoming,
    length: usize,
    came: Arc<AtomicUsize>,
) -> Result<Vec<u8>, (StatusCode, &'static str)> {
    let mut bytes = Vec::with_capacity(length);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| (StatusCode::BAD_REQUEST, "the request body is incomplete"))?;
        let Some(data) = frame.data_ref() else { continue };
        if bytes.len() + data.len() > length {
            discard(version, body);
            return Err((StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than 20 MiB"));
        }
        bytes.extend_from_slice(data);
        came.store(bytes.len(), Ordering::Relaxed);
    }
    Ok(bytes)
}

/// Reads and drops a body that is not needed. If an HTTP/1 connection is closed while the client still sends, the
/// client may never see the answer. HTTP/2 tells the client to stop.
pub(super) fn discard(version: Version, mut body: Incoming) {
    if version >= Version::HTTP_2 || body.is_end_stream() {
        return;
    }
    let rest = async move {
        let mut left = BODY_LIMIT;
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            let Some(less) = left.checked_sub(length) else { return };
            left = less;
        }
    };
    tokio::spawn(tokio::time::timeout(BODY_WITHIN, rest));
}

/// Returns why an object may not become this large. An object that is too large already may stay as large, or become
/// smaller. The daemon is exempt, because it only adds a short annotation.
pub(super) fn too_large(review: &Review<'_>, daemon: &str, length: usize, values: usize) -> Option<&'static str> {
    let can_be_updated = length <= BODY_LIMIT / OF_A_CREATION && values <= VALUES / OF_A_CREATION;
    if review.operation == Operation::Create && !can_be_updated {
        return Some("a review of its update would be larger than the webhook reads");
    }
    let is_pod = review.group.is_empty() && review.resource == "pods" && review.subresource != "status";
    let stored = |object: &Option<Json<'_>>| object.as_ref().map_or(0, Json::stored);
    let size = stored(&review.object);
    (is_pod && review.user.name != daemon && size > POD_BYTES && size > stored(&review.old_object)).then_some(TOO_LARGE)
}

/// Returns an upper bound of the number of values in a JSON body.
pub(super) fn values(body: &[u8]) -> usize {
    let (mut count, mut is_text, mut bytes) = (1, false, body.iter());
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => is_text = !is_text,
            b'\\' => drop(bytes.next()),
            b',' | b'[' | b'{' if !is_text => count += 1,
            _ => {}
        }
    }
    count
}
