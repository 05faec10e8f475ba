//! Checks that the heads of patches and models name each other.

/// The content of the comment lines at the head of a patch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The test that has to fail, by its name in the list of the test binary.
    pub(crate) test: String,
    /// The package whose library has the test.
    pub(crate) package: String,
    /// Whether a run that does not end counts as caught. The patch has to say so, since a slow test
    /// must not count as a failed one.
    pub(crate) may_hang: bool,
}

impl Head {
    /// The model whose test it is: the name of its file, `doorbell`. Nothing if it is a test of a library.
    pub(crate) fn model(&self) -> Option<&str> {
        let mut names = self.test.split("::");
        let is_model = self.package == MODELS && names.next() == Some("models");
        names.next().filter(|_| is_model)
    }
}

/// The package of the models.
pub(crate) const MODELS: &str = "loom-tests";

/// Reads the lines before the diff: `# test: models::doorbell::name`, then `# package: NAME` if it
/// is no model but a test of that package's library, `# may hang` if it may run without an end, and
/// any other comment.
pub(crate) fn parse_head(patch: &str) -> Result<Head, String> {
    let first = patch.lines().next().unwrap_or_default();
    let test = first
        .strip_prefix("# test:")
        .map(str::trim)
        .filter(|test| !test.is_empty() && !test.contains(char::is_whitespace))
        .ok_or("its first line is not `# test: models::file::name_of_test`")?;
    let comments: Vec<&str> = patch
        .lines()
        .take_while(|line| line.starts_with('#') || line.is_empty())
        .map(|line| line.trim_start_matches('#').trim())
        .collect();
    let may_hang = comments.contains(&"may hang");
    let package = comments
        .iter()
        .find_map(|line| line.strip_prefix("package:"))
        .map_or(MODELS, str::trim);
    if !patch.lines().any(|line| line.starts_with("--- ")) {
        return Err("it holds no diff".to_owned());
    }
    Ok(Head {
        test: test.to_owned(),
        package: package.to_owned(),
        may_hang,
    })
}

/// Returns the teeth that a model's head (its `//!` lines) names as `teeth/NAME.patch`.
pub(crate) fn named_in_head(model: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in model.lines().filter(|line| line.starts_with("//!")) {
        for part in line.split("teeth/").skip(1) {
            let end = part.find(|c: char| !(c.is_ascii_alphanumeric() || "_-".contains(c)));
            let (name, rest) = part.split_at(end.unwrap_or(part.len()));
            if !name.is_empty() && rest.starts_with(".patch") {
                names.push(name.to_owned());
            }
        }
    }
    names
}

/// A model file, and the teeth that its head names.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) file: String,
    pub(crate) teeth: Vec<String>,
}

/// Checks that every model names a tooth, every named tooth exists, and every tooth is named.
/// Returns the disagreements.
///
/// If there is no tooth at all, a model without a tooth is no disagreement.
pub(crate) fn disagreements(models: &[Model], patches: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for model in models {
        let file = &model.file;
        if model.teeth.is_empty() && !patches.is_empty() {
            found.push(format!(
                "{file}: its head (`//!`) names no teeth/NAME.patch that it caught"
            ));
        }
        for tooth in model.teeth.iter().filter(|tooth| !patches.contains(tooth)) {
            found.push(format!(
                "{file}: its head names teeth/{tooth}.patch, which does not exist"
            ));
        }
    }
    for patch in patches {
        if !models.iter().any(|model| model.teeth.contains(patch)) {
            found.push(format!(
                "teeth/{patch}.patch: no model names it in its head"
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIFF: &str = "--- a/src/x.rs\n+++ b/src/x.rs\n@@ -1 +1 @@\n-a\n+b\n";

    #[test]
    fn the_first_line_names_the_test() {
        let head = parse_head(&format!("# test: models::doorbell::rings\n# why\n{DIFF}"));
        assert_eq!(
            head,
            Ok(Head {
                test: "models::doorbell::rings".to_owned(),
                package: MODELS.to_owned(),
                may_hang: false,
            })
        );
        let head = parse_head(&format!("# test: a::b\n# package: tourbillon\n{DIFF}"));
        assert_eq!(head.unwrap().package, "tourbillon");
    }

    #[test]
    fn the_test_names_the_model_and_a_library_has_none() {
        let model = |text: &str| {
            let head = parse_head(&format!("{text}\n{DIFF}")).unwrap();
            head.model().map(str::to_owned)
        };
        let doorbell = Some("doorbell".to_owned());
        assert_eq!(model("# test: models::doorbell::rings"), doorbell);
        assert_eq!(model("# test: rig::tests::turns"), None);
        assert_eq!(model("# test: models::a::b\n# package: tourbillon"), None);
    }

    #[test]
    fn only_a_patch_that_says_so_may_hang() {
        let said = format!("# test: models::a::b\n#\n# may hang\n{DIFF}");
        assert!(parse_head(&said).unwrap().may_hang);
        let in_the_diff = format!("# test: models::a::b\n{DIFF}# may hang\n");
        assert!(!parse_head(&in_the_diff).unwrap().may_hang);
    }

    #[test]
    fn a_patch_without_test_or_diff_is_refused() {
        assert!(parse_head(DIFF).is_err());
        assert!(parse_head(&format!("# test:\n{DIFF}")).is_err());
        assert!(parse_head(&format!("# test: two words\n{DIFF}")).is_err());
        assert!(parse_head("# test: models::a::b\n").is_err());
        assert!(parse_head("").is_err());
    }

    #[test]
    fn a_head_names_teeth_and_the_rest_of_the_file_does_not() {
        let model = "//! Caught `teeth/no_fence.patch` and teeth/late-look.patch.\n\
                     //! Not a tooth: teeth/.patch, teeth/x.txt\n\
                     use std::fmt; // teeth/other.patch\n";
        assert_eq!(named_in_head(model), ["no_fence", "late-look"]);
    }

    fn model(file: &str, teeth: &[&str]) -> Model {
        Model {
            file: file.to_owned(),
            teeth: teeth.iter().map(|&tooth| tooth.to_owned()).collect(),
        }
    }

    #[test]
    fn both_sides_have_to_name_each_other() {
        let patches = ["a".to_owned(), "b".to_owned()];
        let agreed = [model("one.rs", &["a"]), model("two.rs", &["b", "a"])];
        assert!(disagreements(&agreed, &patches).is_empty());

        let bare = [model("one.rs", &["a", "b"]), model("two.rs", &[])];
        assert_eq!(disagreements(&bare, &patches).len(), 1);
        let missing = [model("one.rs", &["a", "b", "c"])];
        assert_eq!(disagreements(&missing, &patches).len(), 1);
        let unnamed = [model("one.rs", &["a"])];
        assert_eq!(disagreements(&unnamed, &patches).len(), 1);
    }

    #[test]
    fn without_any_tooth_only_a_wrong_name_is_wrong() {
        assert!(disagreements(&[model("one.rs", &[])], &[]).is_empty());
        assert_eq!(disagreements(&[model("one.rs", &["a"])], &[]).len(), 1);
    }
}
