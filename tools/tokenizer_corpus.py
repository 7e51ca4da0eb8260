"""Sentences, code and rare characters from which make_tokenizer_golden.py draws."""

SENTENCES = """
The store keeps every page in shared memory and hands the worker a descriptor.
A long document comes in, an answer goes out, and nobody should wait for it.
She said that they'd never seen such a small machine do so much work, and it didn't stop.
If you're going to measure something, measure it twice; we've seen what happens otherwise.
I'll meet you at the harbour when the lights go out, won't I? He'd laugh, but that's all.
Numbers matter: 7, 42, 365, 1024, 65536 and 1048576 are easy to remember, 3.14159 is not.
IT'S NOT WHAT YOU'VE SAID, IT'S WHAT THEY'LL DO. DON'T ASK.
Der schnelle Zug fährt über die große Brücke, während die Häuser im Nebel verschwinden.
Können wir morgen früh noch einmal über die Größe des Speichers sprechen?
Le garçon a mangé une crème brûlée près de la forêt, où l'été dure plus longtemps.
Ça ne fait rien, répondit-elle, nous irons à l'école à pied.
El niño pequeño corrió mañana y tarde por el camino que va al corazón de la ciudad.
¿Qué hora es? ¡No lo sé, pero ya es tarde!
A manhã trouxe o pão, a canção e uma estação de chuvas sem fim.
Zażółć gęślą jaźń, powiedział stary człowiek i zamknął drzwi.
Příliš žluťoučký kůň úpěl ďábelské ódy na konci týdne.
İstanbul'da ışık çok güzel, ağaçlar yeşil ve gökyüzü açık.
Người ta nói rằng trời sẽ mưa vào buổi chiều, nhưng tôi không tin điều đó.
Быстрая лиса перепрыгнула через ленивую собаку, и никто этого не заметил.
Сколько времени нужно, чтобы прочитать всю книгу от начала до конца?
Η γρήγορη αλεπού πηδάει πάνω από το τεμπέλικο σκυλί κάθε πρωί.
השועל המהיר קופץ מעל הכלב העצלן בכל בוקר שבת.
الثعلب السريع يقفز فوق الكلب الكسول في الصباح الباكر من كل يوم.
کتاب‌ها را روی میز گذاشتم و از پنجره بیرون را نگاه کردم.
तेज़ लोमड़ी आलसी कुत्ते के ऊपर कूदती है और जंगल में चली जाती है।
দ্রুত শিয়াল অলস কুকুরের উপর দিয়ে লাফ দেয়।
வேகமான நரி சோம்பேறி நாயின் மேல் தாவுகிறது.
สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ
敏捷的棕色狐狸跳过了懒狗,然后消失在森林里。
我们明天早上八点在图书馆门口见面,好吗?
素早い茶色の狐はのろまな犬を飛び越える。カタカナとひらがなも読めますか?
빠른 갈색 여우가 게으른 개를 뛰어넘고 숲으로 사라졌다.
სწრაფი მელა ზარმაც ძაღლს გადაახტა.
Արագ աղվեսը ցատկում է ծույլ շան վրայով։
""".strip().splitlines()

CODE = """
for (size_t i = 0; i < pages.size(); ++i) { total += pages[i].bytes; }
def attention(q, k, v):\\n    scores = q @ k.T / math.sqrt(d)\\n    return softmax(scores) @ v
if (status != absl::OkStatus()) {\\n\\treturn status;\\n}\\n
const std::vector<int32_t> ids = tokenizer->Encode(text, {.add_special = false});
SELECT name, COUNT(*) FROM segments WHERE tokens >= 1024 GROUP BY name;
{"model": "llama", "layers": [1, 2, 3], "bias": null, "scale": 1e-5}
<div class="row">\\r\\n  <a href="https://example.org/a?b=c&d=%20e">link</a>\\r\\n</div>
x = {k: v**2 for k, v in items if not k.startswith('__')}  # squares
#include <cstdint>\\n\\nint main() { return 0; }\\n
git commit -m "Fix it" && make -j8 || exit 1
fn main() -> Result<(), Box<dyn Error>> {\\n    println!("{:?}", 0xFFu8);\\n    Ok(())\\n}
""".strip().splitlines()

# Code points that pattern engines and normalisers like to disagree on, singly and together.
WHITE_SPACE = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n", "\n ", "\r", "\v", "\f", "\u00a0",
               "\u1680", "\u2003", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f",
               "\u3000", "\u0085", "\u180e", "\u200b", "\ufeff", "\x1c", "\x1f"]
COMBINING = ["\u0300", "\u0301", "\u0302", "\u0303", "\u0308", "\u030a", "\u0323", "\u0327", "\u0328",
             "\u0338", "\u0345", "\u05b0", "\u064b", "\u0651", "\u093c", "\u0e49", "\u20d7", "\u3099",
             "\u309a", "\u1161", "\u11a8", "\ufe0f"]
COMPOSED = ["e\u0301", "A\u030a", "\u212b", "\u2126", "o\u0308\u0323", "\u0958", "\u1e9b\u0323",
            "\u1100\u1161\u11a8", "\uac00\u11a8", "\u03b1\u0345\u0301", "\ufa10", "\u2adc",
            "\U0001d15e", "\u304b\u3099", "n\u0303", "\ufb01", "\u01c6", "\u0130", "\u0344",
            "c\u0327\u0301", "\u0064\u0323\u0307", "\u0f73", "\u2f800"]
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇯🇵🇫🇷", "❤️", "☕", "🧑🏿‍🚀", "1️⃣", "©️", "™", "✈︎", "🫠", "🪿"]
CONTRACTIONS = ["don't", "I'LL", "they've", "We'Re", "it'\u017f", "'s", "'S", "''s", "\u2019s", "'ll'd",
                "x'm", "\u00df's", "'T", "'rE", "o'vE", "'k", "\u212a's"]
SPECIALS = ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>",
            "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>", "<think>",
            "<mask>", "<|tail|>", "wordy", "Caf\u00e9Bar", "Cafe\u0301Bar", "<|eot_id|", "<|im_<|im_end|>",
            "|>", "<|", "<", "<tool_call", "<|eot_id|><|eot_id|>"]
# Beginnings of blocks from which whole characters are drawn, 128 from each.
BLOCKS = [0x00, 0x80, 0x100, 0x180, 0x250, 0x2b0, 0x300, 0x370, 0x400, 0x530, 0x590, 0x600, 0x700,
          0x780, 0x900, 0x980, 0xa00, 0xb00, 0xb80, 0xc00, 0xd00, 0xd80, 0xe00, 0xe80, 0xf00, 0x1000,
          0x10a0, 0x1100, 0x1200, 0x13a0, 0x1400, 0x1680, 0x1780, 0x1800, 0x1e00, 0x1f00, 0x2000,
          0x2070, 0x2100, 0x2150, 0x2190, 0x2200, 0x2460, 0x2500, 0x2600, 0x2c00, 0x2d00, 0x2e80,
          0x3000, 0x3040, 0x30a0, 0x3100, 0x3200, 0x3400, 0x4e00, 0x5b57, 0x9f80, 0xa000, 0xa500,
          0xa640, 0xa720, 0xa880, 0xabc0, 0xac00, 0xd780, 0xe000, 0xf900, 0xfb00, 0xfe00, 0xff00,
          0x10000, 0x10100, 0x10280, 0x10400, 0x105c0, 0x10900, 0x10a00, 0x10d40, 0x11000, 0x11380,
          0x11f00, 0x12000, 0x13000, 0x13460, 0x16a00, 0x1b000, 0x1d100, 0x1d400, 0x1d7c0, 0x1e030,
          0x1e900, 0x1f100, 0x1f300, 0x1f600, 0x1f900, 0x20000, 0x2ebf0, 0x31350, 0xe0000, 0x10ff80]
