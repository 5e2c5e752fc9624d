//! Curves as pictures: an SVG or a PNG file, and a few lines of a terminal.

use std::io::{Cursor, IsTerminal};
use std::path::Path;

use image::{ExtendedColorType, ImageFormat};
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::{
    BLACK, BitMapBackend, ChartBuilder, Color, DrawingBackend, IntoDrawingArea, LineSeries, PathElement, RGBColor,
    SVGBackend, SeriesLabelPosition, WHITE,
};
use plotters::style::{FontStyle, register_font};
use textplots::{Chart, Plot, Shape};

use super::curves::{Curves, Line};
use crate::cli::Trouble;
use crate::cli::output::check_file;
use crate::cli::table::number;

/// The width of a picture, and the height of each of its diagrams.
const SIZE: (u32, u32) = (800, 360);
/// Colours that people with any colour vision can distinguish (Okabe and Ito, 2008).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
];
/// A terminal's diagram.
const SIZE_IN_DOTS: Size = Size { columns: 60, lines: 10 };

/// The size of a diagram on a terminal.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Size {
    pub columns: u32,
    pub lines: u32,
}

/// The form of a picture, by a file's extension.
#[derive(Clone, Copy, Debug)]
enum Form {
    Svg,
    Png,
}

impl Form {
    fn of(file: &Path) -> Option<Form> {
        match file.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "svg" => Some(Form::Svg),
            "png" => Some(Form::Png),
            _ => None,
        }
    }
}

/// Refuses a file for --plot that could not be drawn.
pub(super) fn check(file: &Path) -> Result<(), Trouble> {
    check_file("--plot", file)?;
    match Form::of(file) {
        Some(_) => Ok(()),
        None => Err(Trouble::input(format!("--plot {}: expected a file that ends in .svg or .png", file.display()))),
    }
}

/// Draws the curves: into --plot, if there is a point, and, if `is_shown`, for a person at a terminal.
pub(super) fn draw(curves: &Curves, plot: Option<&Path>, is_shown: bool) -> Result<(), Trouble> {
    if let Some(path) = plot {
        let at = |why: &dyn std::fmt::Display| Trouble::input(format!("--plot {}: {why}", path.display()));
        if let Some(bytes) = picture(curves, Form::of(path).unwrap_or(Form::Svg)).map_err(|why| at(&why))? {
            std::fs::write(path, bytes).map_err(|error| at(&error))?;
        }
    }
    if is_shown
        && std::io::stderr().is_terminal()
        && let Some(dots) = dots(curves)
    {
        eprintln!("{dots}");
    }
    Ok(())
}

/// A picture of the loss, and below it of the metrics, if there are any; `None` if there is no value to draw.
fn picture(curves: &Curves, form: Form) -> Result<Option<Vec<u8>>, String> {
    let diagrams: Vec<Vec<Line>> = curves.diagrams().into_iter().filter(|lines| !lines.is_empty()).collect();
    if diagrams.is_empty() {
        return Ok(None);
    }
    // The letters of a PNG are of this font; those of an SVG are measured by it.
    if register_font("sans-serif", FontStyle::Normal, epaint_default_fonts::HACK_REGULAR).is_err() {
        return Err("the font of the labels cannot be read".to_owned());
    }
    let size = (SIZE.0, SIZE.1 * diagrams.len() as u32);
    match form {
        Form::Svg => {
            let mut text = String::new();
            chart(SVGBackend::with_string(&mut text, size), &diagrams).map_err(|error| error.to_string())?;
            Ok(Some(text.into_bytes()))
        }
        Form::Png => {
            let mut pixels = vec![0; 3 * size.0 as usize * size.1 as usize];
            chart(BitMapBackend::with_buffer(&mut pixels, size), &diagrams).map_err(|error| error.to_string())?;
            let mut file = Cursor::new(Vec::new());
            image::write_buffer_with_format(
                &mut file,
                &pixels,
                size.0,
                size.1,
                ExtendedColorType::Rgb8,
                ImageFormat::Png,
            )
            .map_err(|error| error.to_string())?;
            Ok(Some(file.into_inner()))
        }
    }
}

/// Draws diagrams, one below the other.
fn chart<B: DrawingBackend>(backend: B, diagrams: &[Vec<Line>]) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let root = backend.into_drawing_area();
    root.fill(&WHITE)?;
    for (area, lines) in root.split_evenly((diagrams.len(), 1)).iter().zip(diagrams) {
        let all: Vec<(f64, f64)> = lines.iter().flat_map(|line| line.points.iter().copied()).collect();
        let ((x0, x1), (y0, y1)) = ranges(&all);
        let mut builder = ChartBuilder::on(area);
        builder.margin(12).x_label_area_size(36).y_label_area_size(60);
        let mut chart = builder.build_cartesian_2d(x0..x1, y0..y1)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc("step").light_line_style(WHITE).x_label_formatter(&|step| format!("{step}"));
        mesh.draw()?;
        for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
            let style = colour.stroke_width(2);
            let series = LineSeries::new(line.points.iter().copied(), style);
            let drawn = chart.draw_series(series)?;
            drawn.label(&line.name).legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], style));
        }
        let mut labels = chart.configure_series_labels();
        labels.position(position(lines)).background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3));
        labels.draw()?;
    }
    root.present()
}

/// The place of the names: away from the end of the first line.
fn position(lines: &[Line]) -> SeriesLabelPosition {
    let points = lines.first().map(|line| &line.points[..]).unwrap_or_default();
    match (points.first(), points.last()) {
        (Some(first), Some(last)) if last.1 > first.1 => SeriesLabelPosition::LowerRight,
        _ => SeriesLabelPosition::UpperRight,
    }
}

/// The curve of the loss in dots, for a terminal; `None` if it has fewer than two points.
fn dots(curves: &Curves) -> Option<String> {
    let [losses, _] = curves.diagrams();
    let line = losses.first()?;
    dots_of(&line.name, &line.points, SIZE_IN_DOTS)
}

/// A curve in dots, with its name and ranges; `None` if it has fewer than two points.
pub(in crate::cli) fn dots_of(name: &str, points: &[(f64, f64)], size: Size) -> Option<String> {
    if points.len() < 2 {
        return None;
    }
    let ((x0, x1), (y0, y1)) = ranges(points);
    let points: Vec<(f32, f32)> = points.iter().map(|&(x, y)| (x as f32, y as f32)).collect();
    let shape = Shape::Lines(&points);
    // Two dots to a column, four to a line.
    let (width, height) = (2 * size.columns, 4 * size.lines);
    let mut chart = Chart::new_with_y_range(width, height, x0 as f32, x1 as f32, y0 as f32, y1 as f32);
    let chart = chart.lineplot(&shape);
    chart.figures();
    Some(
        format!("{name}\n{}", chart.frame().trim_end_matches('\n'))
            + &format!("\n{} to {}, step {x0} to {x1}", number(y0), number(y1)),
    )
}

/// The ranges of the points in both coordinates; never empty.
fn ranges(points: &[(f64, f64)]) -> ((f64, f64), (f64, f64)) {
    let range = |of: fn(&(f64, f64)) -> f64| {
        let (least, most) =
            points.iter().map(of).fold((f64::MAX, f64::MIN), |(least, most), at| (least.min(at), most.max(at)));
        match most > least {
            true => (least, most),
            false => (least - 0.5, most + 0.5),
        }
    };
    (range(|point| point.0), range(|point| point.1))
}

#[cfg(test)]
mod tests {
    use super::super::curves::Curve;
    use super::*;

    fn curves() -> Curves {
        let mut trained = Curve::new(vec!["loss".to_owned(), "a<b".to_owned()]);
        (1..=10).for_each(|step| trained.add(step * 10, &[1.0 / step as f64, 0.5]));
        let mut held_out = Curve::new(vec!["loss".to_owned()]);
        held_out.add(100, &[0.3]);
        Curves { trained, held_out }
    }

    #[test]
    fn a_picture_has_a_line_for_each_name() {
        let text = String::from_utf8(picture(&curves(), Form::Svg).unwrap().unwrap()).unwrap();
        assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"), "{text}");
        // Two diagrams: a line each for the loss and the metric, and their names, in which markup is text.
        assert!(text.contains("height=\"720\"") && text.matches("<polyline ").count() >= 3, "{text}");
        for name in ["loss", "a&lt;b", "loss (held out)"] {
            assert!(text.contains(&format!("{name}\n")), "{name}: {text}");
        }
        let none = Curves { trained: Curve::new(vec!["loss".to_owned()]), held_out: Curve::new(Vec::new()) };
        assert!(picture(&none, Form::Svg).unwrap().is_none() && dots(&none).is_none());
    }

    #[test]
    fn a_png_has_the_lines_and_the_letters_of_the_svg() {
        let bytes = picture(&curves(), Form::Png).unwrap().unwrap();
        let pixels = image::load_from_memory_with_format(&bytes, ImageFormat::Png).unwrap().into_rgb8();
        assert_eq!(pixels.dimensions(), (800, 720));
        let count =
            |colour: RGBColor| pixels.pixels().filter(|pixel| pixel.0 == [colour.0, colour.1, colour.2]).count();
        // Each of the two diagrams has a line of the first colour, as long as the diagram is wide; the letters are black.
        assert!(count(COLOURS[0]) > 2 * 700 && count(COLOURS[1]) > 0, "{} {}", count(COLOURS[0]), count(COLOURS[1]));
        let below_the_axis =
            pixels.enumerate_pixels().filter(|(x, y, pixel)| *x > 90 && *y > 720 - 36 && pixel.0[0] < 128);
        assert!(below_the_axis.count() > 20);
    }

    #[test]
    fn a_terminal_shows_the_loss_falling() {
        let text = dots(&curves()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0] == "loss" && lines.last() == Some(&"0.10000 to 1, step 10 to 100"), "{text}");
        // Its first point is in the first column of the first line, its last at the end of the last.
        let is_dot = |letter: char| letter != ' ' && letter != '\u{2800}';
        assert!(lines[1].chars().next().is_some_and(is_dot), "{text}");
        assert!(lines[lines.len() - 2].trim_end().chars().count() >= 59, "{text}");
    }
}
