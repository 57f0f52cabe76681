//! JSON values that borrow their texts from the body of a request. No part of the body is lost.
//!
//! `serde_json::Value` would copy each text and key. If an object has a key twice, parsing fails, because another
//! parser could use the other value.

use std::borrow::Cow;
use std::fmt;
use std::ops::Index;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

/// The API server's record of field owners. It makes up half of many objects, and few rules read it.
const UNREAD: &str = "managedFields";

/// A JSON value.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Json<'a> {
    /// `null`.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer of at most 64 bits, or a floating-point number.
    Number(Number),
    Text(Cow<'a, str>),
    List(Vec<Json<'a>>),
    Object(Object<'a>),
    /// The text of `managedFields`. The text is valid JSON, and is parsed by [`Json::read`] only if a rule needs it.
    Unread(Cow<'a, str>),
}

/// The fields of an object, sorted by key. Each key occurs once.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Object<'a>(Vec<(Cow<'a, str>, Json<'a>)>);

/// Up to this number of fields, a linear search is faster than a binary search.
const FEW: usize = 24;

static NULL: Json<'static> = Json::Null;

impl<'a> Json<'a> {
    /// Parses a text.
    pub fn read(text: &'a str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Returns the value of `key`; `None` if the key is absent or the value is not an object.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.as_object()?.get(key)
    }

    /// Like [`Json::get`], but mutable.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        self.as_object_mut()?.get_mut(key)
    }

    #[must_use]
    pub fn is_null(&self) -> bool {
        *self == Self::Null
    }

    /// Returns the largest number of bytes that etcd may need for the value: its length as JSON without spaces or
    /// escapes. Kubernetes' own format is shorter.
    #[must_use]
    pub fn stored(&self) -> usize {
        match self {
            Self::Null | Self::Bool(_) => 5,
            Self::Number(number) => number.to_string().len() + 1,
            Self::Text(text) => text.len() + 3,
            Self::List(items) => 3 + items.iter().map(Self::stored).sum::<usize>(),
            Self::Object(fields) => 3 + fields.iter().map(|(key, value)| key.len() + 3 + value.stored()).sum::<usize>(),
            Self::Unread(text) => text.len() + 1,
        }
    }

    /// Returns the value of a boolean.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(value) = self { Some(*value) } else { None }
    }

    /// Returns the number, if it is an integer that fits into 64 bits.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        if let Self::Number(value) = self { value.as_i64() } else { None }
    }

    /// Returns the text, if the value is one.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        if let Self::Text(value) = self { Some(value) } else { None }
    }

    /// Returns the items, if the value is a list.
    #[must_use]
    pub fn as_list(&self) -> Option<&[Self]> {
        if let Self::List(value) = self { Some(value) } else { None }
    }

    /// Like [`Json::as_list`], but mutable.
    pub fn as_list_mut(&mut self) -> Option<&mut Vec<Self>> {
        if let Self::List(value) = self { Some(value) } else { None }
    }

    /// Returns the fields, if the value is an object.
    #[must_use]
    pub fn as_object(&self) -> Option<&Object<'a>> {
        if let Self::Object(value) = self { Some(value) } else { None }
    }

    /// Like [`Json::as_object`], but mutable.
    pub fn as_object_mut(&mut self) -> Option<&mut Object<'a>> {
        if let Self::Object(value) = self { Some(value) } else { None }
    }
}

impl<'a> Object<'a> {
    /// Returns the value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Json<'a>> {
        if self.0.len() <= FEW {
            // Most keys differ in length, so each comparison ends at once.
            return self.0.iter().find(|(own, _)| own.as_ref() == key).map(|(_, value)| value);
        }
        self.place(key).ok().map(|at| &self.0[at].1)
    }

    /// Like [`Object::get`], but mutable.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Json<'a>> {
        self.place(key).ok().map(|at| &mut self.0[at].1)
    }

    /// Whether the object has the field `key`.
    #[must_use]
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Returns the value of `key`. If the key is absent, inserts it with `null`.
    pub fn entry(&mut self, key: &'a str) -> &mut Json<'a> {
        let at = self.place(key).unwrap_or_else(|at| {
            self.0.insert(at, (Cow::Borrowed(key), Json::Null));
            at
        });
        &mut self.0[at].1
    }

    /// Returns the fields in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Json<'a>)> {
        self.0.iter().map(|(key, value)| (key.as_ref(), value))
    }

    /// Removes the fields for which `keep` returns false.
    pub fn retain(&mut self, keep: impl Fn(&str, &Json<'a>) -> bool) {
        self.0.retain(|(key, value)| keep(key, value));
    }

    /// Whether there are no fields.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn place(&self, key: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(own, _)| own.as_ref().cmp(key))
    }
}

impl Index<&str> for Json<'_> {
    type Output = Self;

    /// Returns the value of `key`; `null` if the key is absent.
    fn index(&self, key: &str) -> &Self {
        self.get(key).unwrap_or(&NULL)
    }
}

impl<'a> Json<'a> {
    /// Returns an object with these fields.
    #[must_use]
    pub fn object<const N: usize>(mut fields: [(&'a str, Self); N]) -> Self {
        fields.sort_unstable_by_key(|(key, _)| *key);
        Self::Object(Object(fields.into_iter().map(|(key, value)| (Cow::Borrowed(key), value)).collect()))
    }
}

impl From<bool> for Json<'_> {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<u32> for Json<'_> {
    fn from(value: u32) -> Self {
        Self::Number(value.into())
    }
}

impl<'a> From<&'a str> for Json<'a> {
    fn from(value: &'a str) -> Self {
        Self::Text(Cow::Borrowed(value))
    }
}

impl From<String> for Json<'_> {
    fn from(value: String) -> Self {
        Self::Text(Cow::Owned(value))
    }
}

impl<'a> From<&'a Value> for Json<'a> {
    fn from(value: &'a Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Number(value) => Self::Number(value.clone()),
            Value::String(value) => Self::Text(Cow::Borrowed(value)),
            Value::Array(values) => Self::List(values.iter().map(Self::from).collect()),
            Value::Object(fields) => {
                let field = |(key, value): (&'a String, &'a Value)| match key.as_str() {
                    UNREAD if !value.is_null() => (Cow::Borrowed(UNREAD), Self::Unread(Cow::Owned(value.to_string()))),
                    key => (Cow::Borrowed(key), Self::from(value)),
                };
                Self::Object(Object(fields.iter().map(field).collect()))
            }
        }
    }
}

impl From<&Json<'_>> for Value {
    fn from(json: &Json<'_>) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(value) => Self::Number(value.clone()),
            Json::Text(value) => Self::String(value.as_ref().to_owned()),
            Json::List(values) => values.iter().map(Self::from).collect(),
            Json::Object(fields) => {
                Self::Object(fields.iter().map(|(key, value)| (key.to_owned(), value.into())).collect::<Map<_, _>>())
            }
            Json::Unread(text) => serde_json::from_str(text).unwrap_or_default(),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Json<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Json<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json<'de>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json<'de>, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json<'de>, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json<'de>, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Json<'de>, E> {
        Number::from_f64(value).map(Json::Number).ok_or_else(|| E::custom("no number"))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json<'de>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json<'de>, A::Error> {
        let mut fields = Vec::new();
        while let Some(Text(key)) = entries.next_key()? {
            let value = match key.as_ref() {
                UNREAD => match entries.next_value::<&RawValue>()?.get() {
                    "null" => Json::Null,
                    text => Json::Unread(Cow::Borrowed(text)),
                },
                _ => entries.next_value()?,
            };
            fields.push((key, value));
        }
        fields.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        if fields.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(A::Error::custom("a key occurs twice"));
        }
        Ok(Json::Object(Object(fields)))
    }
}

/// A text of a body, borrowed if it contains no escapes.
#[derive(Debug, Clone, Default)]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextReader)
    }
}

struct TextReader;

impl<'de> Visitor<'de> for TextReader {
    type Value = Text<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a text")
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Owned(value.to_owned())))
    }
}
