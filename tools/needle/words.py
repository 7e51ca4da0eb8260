"""Word lists of the generated language.

Every list is the project's own selection of plain English words (code words excepted, which are
made up). The lists are small on purpose: the tokenizer then has one token for nearly every word.
"""

# A key is an adjective and a noun: 128 x 256 = 32,768 keys.
ADJECTIVES = tuple("""
able amber ancient angry arid bitter black blank blue blunt bold brave brief bright brisk broad
broken brown busy calm careful cheap chilly clean clever cold common copper cosy crisp cruel curly
damp dark dear deep dense dim distant double dry dull dusty eager early elegant empty even faint
fancy fast fine firm flat fond formal fresh frozen gentle giant glad golden grand gray green grim
hairy happy hard heavy hidden hollow honest huge humble icy idle iron jolly keen kind large late
lazy little lively lonely loud loyal lucky mellow merry mild modern modest muddy narrow neat noble
noisy odd old orange pale patient plain polite proud purple quick quiet rapid rare red rich rough
round royal rusty sad salty scarlet shy silent silver simple slim smooth
""".split())

NOUNS = tuple("""
acorn anchor apple arch arrow autumn badge badger bamboo banner barn barrel basin basket beacon
bear beaver bell bench berry bird blanket boat bottle boulder bowl bramble branch brick bridge
brook broom bucket button cabin cactus camel candle canoe canyon captain carpet carrot cart castle
cedar cellar chain chair cherry chest chimney cliff clock cloud clover coach coast coin comet
compass copse coral cotton cradle crane crater crow crown crystal curtain cushion daisy dancer
deer desert diamond donkey door dragon drum eagle easel ember engine falcon farmer feather fence
fern ferry fiddle field finch fish flag flame flask flower flute forest fossil fountain fox frog
furnace garden gate ghost giraffe glacier glove goat goose grape grove guitar hammer harbor hare
harp hawk hazel hedge helmet heron hill hive honey horn horse hotel house iceberg inn island ivory
jacket jar jewel kettle key kite kitten knife ladder lagoon lake lamp lantern leaf lemon library
lily lion lizard lobster lock lotus magnet mango maple marble market mask meadow melon mill mirror
mitten monkey moon moose moss moth mountain mouse needle nest oak oasis ocean olive onion orchard
otter owl oyster paddle painter palace panda paper parrot pasture peach pearl pebble pencil pepper
piano pigeon pillow pine pirate planet plum pocket pond pony poplar potato prairie prince pumpkin
puzzle quarry queen rabbit radio raven reef ribbon river robin rocket root rose sailor salmon sand
scarf school shadow shell shepherd ship shore silk spider
spoon squirrel star statue stork swan tiger
torch tulip turtle violin walnut whale willow wolf zebra
""".split())

# Words of the sentences that carry no fact.
NAMES = tuple("""
Alba Arno Bela Cara Dario Edda Elmo Fara Gino Hela Igor Jana Karl Lena Mara Nils Olga Pavel Rosa
Sven Tilda Ugo Vera Walt Xenia Yara Zeno Bruno Clara Doris
""".split())

PEOPLE = tuple("""
baker blacksmith carpenter cook doctor driver gardener guard judge lawyer mayor miller nurse
poet scholar singer soldier student tailor teacher trader traveler uncle visitor waiter weaver
writer neighbor stranger child
""".split())

VERBS = tuple("""
admired answered asked brought carried caught cleaned counted covered crossed described drew
dropped examined explained fetched finished followed forgot found gathered guarded handed ignored
kept left lifted liked lost measured mended missed moved noticed opened painted passed placed
planted praised pulled pushed raised reached remembered repaired returned saw sold studied swept
touched traded visited washed watched wrapped
""".split())

THINGS = tuple("""
bread letter picture story song tool table box bag rope book map chart ticket plate cup shirt hat
coat shoe window wall stone fire water milk corn salt soup cake wheel nail board cloth thread
poem rule promise answer reason
""".split())

PLACES = tuple("""
square street road village town valley bakery station church tower kitchen attic courtyard
stable workshop theater museum office corner path stream pier yard hall
""".split())

TIMES = tuple("""
yesterday today again twice often soon slowly quickly alone together outside inside later first
""".split())

WEATHERS = tuple("rain snow wind fog sun storm frost heat".split())

# Made-up words of the frequent-words task.
CODE_WORDS = tuple("""
zorvu kelpo mirta vondi drasu plemi quoba yolti fenka grubo hesti jarno lubra nopti skelu tramo
vesko wimba xardo zunti blika crado dolbe fruma glosi hokra jelmi kudra lopsi mavro nerga pilto
""".split())
