//! Images that a trained model is applied to.

use meshtf_tensor::DType;
use meshtf_train::data::HoldOutBy;
use meshtf_train::file::{DataSource, Take};
use meshtf_train::model::Model;
use temp_dir::TempDir;

use super::super::source::{Fits, unseen};

#[test]
fn a_file_is_named_once_and_a_folder_is_expected() {
    let folder = TempDir::new().unwrap();
    let m = Model::new();
    m.placeholder("x", DType::F32, [None, Some(2), Some(2), Some(1)]);
    let graph = m.finish().unwrap();
    std::fs::write(folder.child("fake.png"), "no image").unwrap();
    std::fs::write(folder.child("list.json"), "[]").unwrap();
    for (name, wanted) in [
        ("fake.png", "not a valid image: the content is text; expected PNG, JPEG, BMP or GIF"),
        ("list.json", "this is a file; expected a folder of images, with a folder for each class, or an image"),
    ] {
        let file = folder.child(name).display().to_string();
        let sources =
            [("x".to_owned(), DataSource { file: file.clone(), take: Take::Images, ..DataSource::default() })];
        let why = unseen(&graph, &sources, &HoldOutBy::Random, &Fits::new(), true).err().unwrap().to_string();
        assert_eq!(why, format!("data for x: {file}: {wanted}"));
    }
}
