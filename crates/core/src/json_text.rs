//! JSON as text: a tenth of the memory of a tree of the same content, and shared by its copies.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A JSON value, kept as text. Equal values are equal texts, because a [`Value`] sorts its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonText(Arc<str>);

impl JsonText {
    /// The value as a tree.
    #[must_use]
    pub fn value(&self) -> Value {
        // It was written from a value.
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    /// The text itself, to look for what most values do not have: [`Self::value`] takes ten times as long.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl From<&Value> for JsonText {
    fn from(value: &Value) -> Self {
        Self(value.to_string().into())
    }
}

impl Serialize for JsonText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(&Value::deserialize(deserializer)?))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_survives_and_its_keys_have_no_order() {
        let value = json!({"b": ["x", 1, null, {"y": "ä\"\\"}], "a": {}});
        let text = JsonText::from(&value);
        assert_eq!(text.value(), value);
        let read: JsonText =
            serde_json::from_str(r#"{ "a": {}, "b": ["x", 1, null, {"y": "\u00e4\"\\"}] }"#).expect("JSON");
        assert_eq!((serde_json::to_value(&read).expect("JSON"), &read), (value, &text));
    }
}
