//! What a model's file in OpenVINO's own format says of the layout of its inputs and outputs, which
//! the C library does not tell.

/// Whether every input and output has a layout with a batch in it, from the text of `model.xml`.
/// Triton's backend asks this before it completes `max_batch_size`.
pub fn has_batch(xml: &str) -> bool {
    let mut has_any = false;
    for layer in xml.split("<layer ").skip(1) {
        let layer = layer.split("</layer>").next().unwrap_or_default();
        let tag = layer.split('>').next().unwrap_or_default();
        if !matches!(attribute(tag, "type"), Some("Parameter" | "Result")) {
            continue;
        }
        has_any = true;
        let names_layout = |tag: &&str| attribute(tag, "name") == Some("layout");
        let layout = layer
            .split("<attribute ")
            .skip(1)
            .find(names_layout)
            .and_then(|tag| attribute(tag, "layout"));
        if !layout.is_some_and(has_n) {
            return false;
        }
    }
    has_any
}

/// The value of `name="…"` in a tag.
fn attribute<'x>(tag: &'x str, name: &str) -> Option<&'x str> {
    let tag = tag.split('>').next().unwrap_or_default();
    let mut rest = tag;
    while let Some(at) = rest.find(name) {
        let starts = rest[..at]
            .chars()
            .next_back()
            .is_none_or(char::is_whitespace);
        rest = &rest[at + name.len()..];
        if let (true, Some(value)) = (starts, rest.strip_prefix("=\"")) {
            return value.split('"').next();
        }
    }
    None
}

/// `[N,C,H,W]`, `[N,...]`.
fn has_n(layout: &str) -> bool {
    let inner = layout.trim_matches(['[', ']']);
    inner.split(',').any(|dim| dim.trim() == "N")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(kind: &str, layout: &str) -> String {
        format!(
            r#"<layer id="0" name="type" type="{kind}" version="opset1"><data shape="1,3" />
            <rt_info><attribute name="fused" value="x" />{layout}</rt_info></layer>"#
        )
    }

    #[test]
    fn finds_batches() {
        let layout =
            |text: &str| format!(r#"<attribute name="layout" version="0" layout="{text}" />"#);
        let input = |text| layer("Parameter", &layout(text));
        let output = |text| layer("Result", &layout(text));
        for (xml, expected) in [
            (input("[N,C,H,W]") + &output("[N,...]"), true),
            (input("[N,C]") + &layer("Relu", "") + &output("[N,C]"), true),
            (input("[N,C]") + &layer("Result", ""), false),
            (input("[C,H]") + &output("[N,C]"), false),
            (input("[NEXT,C]") + &output("[N,C]"), false),
            (layer("Relu", &layout("[N,C]")), false),
            (String::new(), false),
            (
                "<layer <layer type=\"Parameter\" <attribute name=\"layout".to_owned(),
                false,
            ),
        ] {
            assert_eq!(has_batch(&xml), expected, "{xml}");
        }
    }
}
