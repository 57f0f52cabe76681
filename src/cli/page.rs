//! Turns an [`Overview`] into the page of `bursar report`: one HTML file that loads and runs nothing. Names come from
//! directories, so all text is written through [`Escaped`]. The page is also well-formed XML, so that programs can read
//! it.

use std::fmt::{self, Display, Write as _};

use serde_json::Value;

use crate::report::overview::{Overview, Section};

/// Wide tables scroll on the screen, and are printed whole.
const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;max-width:96rem;padding:1rem 2rem}\
    h2{margin:2.5rem 0 .5rem}p{margin:.4rem 0}nav a{margin-right:1rem;white-space:nowrap}code{overflow-wrap:anywhere}\
    div{overflow:auto;max-height:45rem}table{border-collapse:collapse}\
    th,td{padding:.25rem .8rem .25rem 0;border-bottom:1px solid #ccc;text-align:left;vertical-align:top;\
    max-width:30rem;min-width:4rem;overflow-wrap:anywhere}\
    th{position:sticky;top:0;background:#fff}@media print{div{overflow:visible;max-height:none}th{position:static}}";

/// Text escaped for HTML. Control characters are replaced, so that they cannot control a terminal that prints the page.
struct Escaped<'t>(&'t str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => f.write_char(' ')?,
                // XML allows neither of these two characters, not even escaped.
                '\u{fffe}' | '\u{ffff}' => f.write_char('\u{fffd}')?,
                other if other.is_control() => f.write_char('\u{fffd}')?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// Returns the page.
pub(super) fn page(overview: &Overview) -> String {
    let mut html = String::new();
    // Writing to a string never fails.
    let _ = write(&mut html, overview);
    html
}

fn write(html: &mut String, overview: &Overview) -> fmt::Result {
    let Overview { site, at, ledger, events, head, last_cycle, sections } = overview;
    let (site, ledger, head) = (Escaped(site), Escaped(ledger), Escaped(head));
    let cycle = last_cycle.as_deref().unwrap_or("none yet");
    write!(
        html,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\" />\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\" />\n\
         <meta name=\"viewport\" content=\"width=device-width\" />\n<title>{site}: accounts of {at:.0}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>{site}</h1>\n\
         <p>As of {at:.0}. The last cycle ended: {}. Times are UTC.</p>\n\
         <p>From ledger <code>{ledger}</code> as of event {events} of its history. <code>bursar ledger verify --head {head}</code> proves \
         that the history behind this page was not changed.</p>\n<nav>\n",
        Escaped(cycle)
    )?;
    for Section { id, title, rows, more, .. } in sections {
        let all = rows.len() as u64 + more;
        writeln!(html, "<a href=\"#{id}\">{} ({all})</a>", Escaped(title))?;
    }
    html.push_str("</nav>\n");
    for section in sections {
        list(html, section)?;
    }
    html.push_str("</body>\n</html>\n");
    Ok(())
}

fn list(html: &mut String, Section { id, title, note, columns, rows, more }: &Section) -> fmt::Result {
    writeln!(html, "<h2 id=\"{id}\">{}</h2>", Escaped(title))?;
    if !note.is_empty() {
        writeln!(html, "<p>{}</p>", Escaped(note))?;
    }
    if rows.is_empty() {
        html.push_str("<p>none</p>\n");
        return Ok(());
    }
    html.push_str("<div><table>\n<thead><tr>");
    for column in *columns {
        write!(html, "<th scope=\"col\">{}</th>", Escaped(&column.replace('_', " ")))?;
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        html.push_str("<tr>");
        for column in *columns {
            match row.get(*column) {
                Some(Value::String(text)) if text.starts_with("9999-12-31") => html.push_str("<td>no end</td>"),
                Some(Value::String(text)) => write!(html, "<td>{}</td>", Escaped(text))?,
                None | Some(Value::Null) => html.push_str("<td>-</td>"),
                Some(other) => write!(html, "<td>{}</td>", Escaped(&other.to_string()))?,
            }
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody>\n</table></div>\n");
    if *more > 0 {
        writeln!(html, "<p>… and {more} more</p>")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    #[test]
    fn text_cannot_leave_its_cell() {
        let hostile = "</td><script>alert('x')</script>&amp;\u{1b}[31m\u{0}\u{ffff}\"";
        let escaped = Escaped(hostile).to_string();
        let shown =
            "&lt;/td&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;amp;\u{fffd}[31m\u{fffd}\u{fffd}&quot;";
        assert_eq!(escaped, shown);
    }

    #[test]
    fn a_list_tells_how_many_more_there_are() {
        let row = json!({"name": "foo", "until": "9999-12-31T23:59:59Z", "n": 3, "nothing": null});
        let rows = vec![row.as_object().cloned().expect("the value is an object")];
        let columns = &["name", "until", "n", "nothing"];
        let section = Section { id: "tools", title: "Tools", note: "a & b".to_owned(), columns, rows, more: 7 };
        let empty = Section { id: "none", title: "None", note: String::new(), columns, rows: Vec::new(), more: 0 };
        let overview = Overview {
            site: "<site>".to_owned(),
            at: Timestamp::UNIX_EPOCH,
            ledger: "l".to_owned(),
            events: 1,
            head: "h".to_owned(),
            last_cycle: None,
            sections: vec![section, empty],
        };
        let html = page(&overview);
        assert!(html.contains("<tr><td>foo</td><td>no end</td><td>3</td><td>-</td></tr>"), "{html}");
        assert!(html.contains("… and 7 more") && html.contains("Tools (8)") && html.contains("<h1>&lt;site&gt;</h1>"));
        assert!(html.contains("<p>a &amp; b</p>") && html.contains("<p>none</p>"), "{html}");
    }
}
