//! Tests the limits of bodies, and what an answer of the webhook contains.

use bursar_core::admission::decision::PatchOperation;
use serde_json::json;

use super::*;

fn review() -> Review<'static> {
    let body = r#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u",
        "operation": "CREATE", "name": "web", "resource": {"group": "", "version": "v1", "resource": "pods"}}}"#;
    Review::parse(body.as_bytes()).expect("the body is a review")
}

#[test]
fn headers_are_dropped_before_the_body_is_read() {
    for (method, path, phase) in [
        ("POST", "/mutate", Ok(Phase::Mutate)),
        ("POST", "/validate", Ok(Phase::Validate)),
        ("GET", "/validate", Err(405)),
        ("POST", "/", Err(404)),
    ] {
        let mut request = Request::builder().method(method).uri(path).body(()).expect("the request is valid");
        // An extension has the lifetime of the headers.
        let kept = Arc::new(());
        request.extensions_mut().insert(Arc::clone(&kept));
        let (found, _, ()) = routed(request);
        let found = found.map_err(|(status, _)| status.as_u16());
        assert_eq!((found, Arc::strong_count(&kept)), (phase, 1), "{method} {path}");
    }
}

#[test]
fn values_inside_strings_are_not_counted() {
    for (body, count) in [(r#"[0,1,"a,b[",{"a\\":[],"\",{":{}}]"#, 9), ("[[[]]]", 4), ("7", 1), ("", 1), (r#""\"#, 1)] {
        assert_eq!(values(body.as_bytes()), count, "{body}");
    }
}

#[test]
fn the_limit_has_room_for_two_fully_escaped_objects() {
    let object = serde_json::to_string(&"\u{1}".repeat(3 << 19)).expect("a text becomes JSON");
    assert!(2 * object.len() + (1 << 20) < BODY_LIMIT);
}

#[test]
fn an_object_that_lost_a_filled_in_field_is_refused() {
    let change = PatchOperation { op: "add", path: "/spec/x".to_owned(), value: json!(1) };
    let decision = Decision { patch: vec![change], ..Decision::default() };
    assert_eq!(settle(Phase::Mutate, &review(), decision.clone()), decision);
    let settled = settle(Phase::Validate, &review(), decision);
    assert!(settled.patch.is_empty() && settled.message().contains("/spec/x"), "{}", settled.message());
}

#[test]
fn warnings_are_reported_in_one_phase_only() {
    let finding = refused("a", "b", "c").refusals;
    let decision = Decision { warnings: finding.clone(), audit: finding, ..Decision::default() };
    assert_eq!(settle(Phase::Mutate, &review(), decision.clone()), Decision::default());
    assert_eq!(settle(Phase::Validate, &review(), decision.clone()), decision);
}
