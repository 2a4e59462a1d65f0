// SPDX-License-Identifier: Apache-2.0
// Generated from wire/definition.py by `python -m weir.wire.generate`. Do not edit.
#ifndef WEIR_WIDE_P4
#define WEIR_WIDE_P4

const bit<4> WIDE_BLOCK_LOG2 = 0xa;
const bit<32> WIDE_LANES = 0x400;

// all lanes of a wide packet
header wide_lanes_t {
    bit<32> l0;
    bit<32> l1;
    bit<32> l2;
    bit<32> l3;
    bit<32> l4;
    bit<32> l5;
    bit<32> l6;
    bit<32> l7;
    bit<32> l8;
    bit<32> l9;
    bit<32> l10;
    bit<32> l11;
    bit<32> l12;
    bit<32> l13;
    bit<32> l14;
    bit<32> l15;
    bit<32> l16;
    bit<32> l17;
    bit<32> l18;
    bit<32> l19;
    bit<32> l20;
    bit<32> l21;
    bit<32> l22;
    bit<32> l23;
    bit<32> l24;
    bit<32> l25;
    bit<32> l26;
    bit<32> l27;
    bit<32> l28;
    bit<32> l29;
    bit<32> l30;
    bit<32> l31;
    bit<32> l32;
    bit<32> l33;
    bit<32> l34;
    bit<32> l35;
    bit<32> l36;
    bit<32> l37;
    bit<32> l38;
    bit<32> l39;
    bit<32> l40;
    bit<32> l41;
    bit<32> l42;
    bit<32> l43;
    bit<32> l44;
    bit<32> l45;
    bit<32> l46;
    bit<32> l47;
    bit<32> l48;
    bit<32> l49;
    bit<32> l50;
    bit<32> l51;
    bit<32> l52;
    bit<32> l53;
    bit<32> l54;
    bit<32> l55;
    bit<32> l56;
    bit<32> l57;
    bit<32> l58;
    bit<32> l59;
    bit<32> l60;
    bit<32> l61;
    bit<32> l62;
    bit<32> l63;
    bit<32> l64;
    bit<32> l65;
    bit<32> l66;
    bit<32> l67;
    bit<32> l68;
    bit<32> l69;
    bit<32> l70;
    bit<32> l71;
    bit<32> l72;
    bit<32> l73;
    bit<32> l74;
    bit<32> l75;
    bit<32> l76;
    bit<32> l77;
    bit<32> l78;
    bit<32> l79;
    bit<32> l80;
    bit<32> l81;
    bit<32> l82;
    bit<32> l83;
    bit<32> l84;
    bit<32> l85;
    bit<32> l86;
    bit<32> l87;
    bit<32> l88;
    bit<32> l89;
    bit<32> l90;
    bit<32> l91;
    bit<32> l92;
    bit<32> l93;
    bit<32> l94;
    bit<32> l95;
    bit<32> l96;
    bit<32> l97;
    bit<32> l98;
    bit<32> l99;
    bit<32> l100;
    bit<32> l101;
    bit<32> l102;
    bit<32> l103;
    bit<32> l104;
    bit<32> l105;
    bit<32> l106;
    bit<32> l107;
    bit<32> l108;
    bit<32> l109;
    bit<32> l110;
    bit<32> l111;
    bit<32> l112;
    bit<32> l113;
    bit<32> l114;
    bit<32> l115;
    bit<32> l116;
    bit<32> l117;
    bit<32> l118;
    bit<32> l119;
    bit<32> l120;
    bit<32> l121;
    bit<32> l122;
    bit<32> l123;
    bit<32> l124;
    bit<32> l125;
    bit<32> l126;
    bit<32> l127;
    bit<32> l128;
    bit<32> l129;
    bit<32> l130;
    bit<32> l131;
    bit<32> l132;
    bit<32> l133;
    bit<32> l134;
    bit<32> l135;
    bit<32> l136;
    bit<32> l137;
    bit<32> l138;
    bit<32> l139;
    bit<32> l140;
    bit<32> l141;
    bit<32> l142;
    bit<32> l143;
    bit<32> l144;
    bit<32> l145;
    bit<32> l146;
    bit<32> l147;
    bit<32> l148;
    bit<32> l149;
    bit<32> l150;
    bit<32> l151;
    bit<32> l152;
    bit<32> l153;
    bit<32> l154;
    bit<32> l155;
    bit<32> l156;
    bit<32> l157;
    bit<32> l158;
    bit<32> l159;
    bit<32> l160;
    bit<32> l161;
    bit<32> l162;
    bit<32> l163;
    bit<32> l164;
    bit<32> l165;
    bit<32> l166;
    bit<32> l167;
    bit<32> l168;
    bit<32> l169;
    bit<32> l170;
    bit<32> l171;
    bit<32> l172;
    bit<32> l173;
    bit<32> l174;
    bit<32> l175;
    bit<32> l176;
    bit<32> l177;
    bit<32> l178;
    bit<32> l179;
    bit<32> l180;
    bit<32> l181;
    bit<32> l182;
    bit<32> l183;
    bit<32> l184;
    bit<32> l185;
    bit<32> l186;
    bit<32> l187;
    bit<32> l188;
    bit<32> l189;
    bit<32> l190;
    bit<32> l191;
    bit<32> l192;
    bit<32> l193;
    bit<32> l194;
    bit<32> l195;
    bit<32> l196;
    bit<32> l197;
    bit<32> l198;
    bit<32> l199;
    bit<32> l200;
    bit<32> l201;
    bit<32> l202;
    bit<32> l203;
    bit<32> l204;
    bit<32> l205;
    bit<32> l206;
    bit<32> l207;
    bit<32> l208;
    bit<32> l209;
    bit<32> l210;
    bit<32> l211;
    bit<32> l212;
    bit<32> l213;
    bit<32> l214;
    bit<32> l215;
    bit<32> l216;
    bit<32> l217;
    bit<32> l218;
    bit<32> l219;
    bit<32> l220;
    bit<32> l221;
    bit<32> l222;
    bit<32> l223;
    bit<32> l224;
    bit<32> l225;
    bit<32> l226;
    bit<32> l227;
    bit<32> l228;
    bit<32> l229;
    bit<32> l230;
    bit<32> l231;
    bit<32> l232;
    bit<32> l233;
    bit<32> l234;
    bit<32> l235;
    bit<32> l236;
    bit<32> l237;
    bit<32> l238;
    bit<32> l239;
    bit<32> l240;
    bit<32> l241;
    bit<32> l242;
    bit<32> l243;
    bit<32> l244;
    bit<32> l245;
    bit<32> l246;
    bit<32> l247;
    bit<32> l248;
    bit<32> l249;
    bit<32> l250;
    bit<32> l251;
    bit<32> l252;
    bit<32> l253;
    bit<32> l254;
    bit<32> l255;
    bit<32> l256;
    bit<32> l257;
    bit<32> l258;
    bit<32> l259;
    bit<32> l260;
    bit<32> l261;
    bit<32> l262;
    bit<32> l263;
    bit<32> l264;
    bit<32> l265;
    bit<32> l266;
    bit<32> l267;
    bit<32> l268;
    bit<32> l269;
    bit<32> l270;
    bit<32> l271;
    bit<32> l272;
    bit<32> l273;
    bit<32> l274;
    bit<32> l275;
    bit<32> l276;
    bit<32> l277;
    bit<32> l278;
    bit<32> l279;
    bit<32> l280;
    bit<32> l281;
    bit<32> l282;
    bit<32> l283;
    bit<32> l284;
    bit<32> l285;
    bit<32> l286;
    bit<32> l287;
    bit<32> l288;
    bit<32> l289;
    bit<32> l290;
    bit<32> l291;
    bit<32> l292;
    bit<32> l293;
    bit<32> l294;
    bit<32> l295;
    bit<32> l296;
    bit<32> l297;
    bit<32> l298;
    bit<32> l299;
    bit<32> l300;
    bit<32> l301;
    bit<32> l302;
    bit<32> l303;
    bit<32> l304;
    bit<32> l305;
    bit<32> l306;
    bit<32> l307;
    bit<32> l308;
    bit<32> l309;
    bit<32> l310;
    bit<32> l311;
    bit<32> l312;
    bit<32> l313;
    bit<32> l314;
    bit<32> l315;
    bit<32> l316;
    bit<32> l317;
    bit<32> l318;
    bit<32> l319;
    bit<32> l320;
    bit<32> l321;
    bit<32> l322;
    bit<32> l323;
    bit<32> l324;
    bit<32> l325;
    bit<32> l326;
    bit<32> l327;
    bit<32> l328;
    bit<32> l329;
    bit<32> l330;
    bit<32> l331;
    bit<32> l332;
    bit<32> l333;
    bit<32> l334;
    bit<32> l335;
    bit<32> l336;
    bit<32> l337;
    bit<32> l338;
    bit<32> l339;
    bit<32> l340;
    bit<32> l341;
    bit<32> l342;
    bit<32> l343;
    bit<32> l344;
    bit<32> l345;
    bit<32> l346;
    bit<32> l347;
    bit<32> l348;
    bit<32> l349;
    bit<32> l350;
    bit<32> l351;
    bit<32> l352;
    bit<32> l353;
    bit<32> l354;
    bit<32> l355;
    bit<32> l356;
    bit<32> l357;
    bit<32> l358;
    bit<32> l359;
    bit<32> l360;
    bit<32> l361;
    bit<32> l362;
    bit<32> l363;
    bit<32> l364;
    bit<32> l365;
    bit<32> l366;
    bit<32> l367;
    bit<32> l368;
    bit<32> l369;
    bit<32> l370;
    bit<32> l371;
    bit<32> l372;
    bit<32> l373;
    bit<32> l374;
    bit<32> l375;
    bit<32> l376;
    bit<32> l377;
    bit<32> l378;
    bit<32> l379;
    bit<32> l380;
    bit<32> l381;
    bit<32> l382;
    bit<32> l383;
    bit<32> l384;
    bit<32> l385;
    bit<32> l386;
    bit<32> l387;
    bit<32> l388;
    bit<32> l389;
    bit<32> l390;
    bit<32> l391;
    bit<32> l392;
    bit<32> l393;
    bit<32> l394;
    bit<32> l395;
    bit<32> l396;
    bit<32> l397;
    bit<32> l398;
    bit<32> l399;
    bit<32> l400;
    bit<32> l401;
    bit<32> l402;
    bit<32> l403;
    bit<32> l404;
    bit<32> l405;
    bit<32> l406;
    bit<32> l407;
    bit<32> l408;
    bit<32> l409;
    bit<32> l410;
    bit<32> l411;
    bit<32> l412;
    bit<32> l413;
    bit<32> l414;
    bit<32> l415;
    bit<32> l416;
    bit<32> l417;
    bit<32> l418;
    bit<32> l419;
    bit<32> l420;
    bit<32> l421;
    bit<32> l422;
    bit<32> l423;
    bit<32> l424;
    bit<32> l425;
    bit<32> l426;
    bit<32> l427;
    bit<32> l428;
    bit<32> l429;
    bit<32> l430;
    bit<32> l431;
    bit<32> l432;
    bit<32> l433;
    bit<32> l434;
    bit<32> l435;
    bit<32> l436;
    bit<32> l437;
    bit<32> l438;
    bit<32> l439;
    bit<32> l440;
    bit<32> l441;
    bit<32> l442;
    bit<32> l443;
    bit<32> l444;
    bit<32> l445;
    bit<32> l446;
    bit<32> l447;
    bit<32> l448;
    bit<32> l449;
    bit<32> l450;
    bit<32> l451;
    bit<32> l452;
    bit<32> l453;
    bit<32> l454;
    bit<32> l455;
    bit<32> l456;
    bit<32> l457;
    bit<32> l458;
    bit<32> l459;
    bit<32> l460;
    bit<32> l461;
    bit<32> l462;
    bit<32> l463;
    bit<32> l464;
    bit<32> l465;
    bit<32> l466;
    bit<32> l467;
    bit<32> l468;
    bit<32> l469;
    bit<32> l470;
    bit<32> l471;
    bit<32> l472;
    bit<32> l473;
    bit<32> l474;
    bit<32> l475;
    bit<32> l476;
    bit<32> l477;
    bit<32> l478;
    bit<32> l479;
    bit<32> l480;
    bit<32> l481;
    bit<32> l482;
    bit<32> l483;
    bit<32> l484;
    bit<32> l485;
    bit<32> l486;
    bit<32> l487;
    bit<32> l488;
    bit<32> l489;
    bit<32> l490;
    bit<32> l491;
    bit<32> l492;
    bit<32> l493;
    bit<32> l494;
    bit<32> l495;
    bit<32> l496;
    bit<32> l497;
    bit<32> l498;
    bit<32> l499;
    bit<32> l500;
    bit<32> l501;
    bit<32> l502;
    bit<32> l503;
    bit<32> l504;
    bit<32> l505;
    bit<32> l506;
    bit<32> l507;
    bit<32> l508;
    bit<32> l509;
    bit<32> l510;
    bit<32> l511;
    bit<32> l512;
    bit<32> l513;
    bit<32> l514;
    bit<32> l515;
    bit<32> l516;
    bit<32> l517;
    bit<32> l518;
    bit<32> l519;
    bit<32> l520;
    bit<32> l521;
    bit<32> l522;
    bit<32> l523;
    bit<32> l524;
    bit<32> l525;
    bit<32> l526;
    bit<32> l527;
    bit<32> l528;
    bit<32> l529;
    bit<32> l530;
    bit<32> l531;
    bit<32> l532;
    bit<32> l533;
    bit<32> l534;
    bit<32> l535;
    bit<32> l536;
    bit<32> l537;
    bit<32> l538;
    bit<32> l539;
    bit<32> l540;
    bit<32> l541;
    bit<32> l542;
    bit<32> l543;
    bit<32> l544;
    bit<32> l545;
    bit<32> l546;
    bit<32> l547;
    bit<32> l548;
    bit<32> l549;
    bit<32> l550;
    bit<32> l551;
    bit<32> l552;
    bit<32> l553;
    bit<32> l554;
    bit<32> l555;
    bit<32> l556;
    bit<32> l557;
    bit<32> l558;
    bit<32> l559;
    bit<32> l560;
    bit<32> l561;
    bit<32> l562;
    bit<32> l563;
    bit<32> l564;
    bit<32> l565;
    bit<32> l566;
    bit<32> l567;
    bit<32> l568;
    bit<32> l569;
    bit<32> l570;
    bit<32> l571;
    bit<32> l572;
    bit<32> l573;
    bit<32> l574;
    bit<32> l575;
    bit<32> l576;
    bit<32> l577;
    bit<32> l578;
    bit<32> l579;
    bit<32> l580;
    bit<32> l581;
    bit<32> l582;
    bit<32> l583;
    bit<32> l584;
    bit<32> l585;
    bit<32> l586;
    bit<32> l587;
    bit<32> l588;
    bit<32> l589;
    bit<32> l590;
    bit<32> l591;
    bit<32> l592;
    bit<32> l593;
    bit<32> l594;
    bit<32> l595;
    bit<32> l596;
    bit<32> l597;
    bit<32> l598;
    bit<32> l599;
    bit<32> l600;
    bit<32> l601;
    bit<32> l602;
    bit<32> l603;
    bit<32> l604;
    bit<32> l605;
    bit<32> l606;
    bit<32> l607;
    bit<32> l608;
    bit<32> l609;
    bit<32> l610;
    bit<32> l611;
    bit<32> l612;
    bit<32> l613;
    bit<32> l614;
    bit<32> l615;
    bit<32> l616;
    bit<32> l617;
    bit<32> l618;
    bit<32> l619;
    bit<32> l620;
    bit<32> l621;
    bit<32> l622;
    bit<32> l623;
    bit<32> l624;
    bit<32> l625;
    bit<32> l626;
    bit<32> l627;
    bit<32> l628;
    bit<32> l629;
    bit<32> l630;
    bit<32> l631;
    bit<32> l632;
    bit<32> l633;
    bit<32> l634;
    bit<32> l635;
    bit<32> l636;
    bit<32> l637;
    bit<32> l638;
    bit<32> l639;
    bit<32> l640;
    bit<32> l641;
    bit<32> l642;
    bit<32> l643;
    bit<32> l644;
    bit<32> l645;
    bit<32> l646;
    bit<32> l647;
    bit<32> l648;
    bit<32> l649;
    bit<32> l650;
    bit<32> l651;
    bit<32> l652;
    bit<32> l653;
    bit<32> l654;
    bit<32> l655;
    bit<32> l656;
    bit<32> l657;
    bit<32> l658;
    bit<32> l659;
    bit<32> l660;
    bit<32> l661;
    bit<32> l662;
    bit<32> l663;
    bit<32> l664;
    bit<32> l665;
    bit<32> l666;
    bit<32> l667;
    bit<32> l668;
    bit<32> l669;
    bit<32> l670;
    bit<32> l671;
    bit<32> l672;
    bit<32> l673;
    bit<32> l674;
    bit<32> l675;
    bit<32> l676;
    bit<32> l677;
    bit<32> l678;
    bit<32> l679;
    bit<32> l680;
    bit<32> l681;
    bit<32> l682;
    bit<32> l683;
    bit<32> l684;
    bit<32> l685;
    bit<32> l686;
    bit<32> l687;
    bit<32> l688;
    bit<32> l689;
    bit<32> l690;
    bit<32> l691;
    bit<32> l692;
    bit<32> l693;
    bit<32> l694;
    bit<32> l695;
    bit<32> l696;
    bit<32> l697;
    bit<32> l698;
    bit<32> l699;
    bit<32> l700;
    bit<32> l701;
    bit<32> l702;
    bit<32> l703;
    bit<32> l704;
    bit<32> l705;
    bit<32> l706;
    bit<32> l707;
    bit<32> l708;
    bit<32> l709;
    bit<32> l710;
    bit<32> l711;
    bit<32> l712;
    bit<32> l713;
    bit<32> l714;
    bit<32> l715;
    bit<32> l716;
    bit<32> l717;
    bit<32> l718;
    bit<32> l719;
    bit<32> l720;
    bit<32> l721;
    bit<32> l722;
    bit<32> l723;
    bit<32> l724;
    bit<32> l725;
    bit<32> l726;
    bit<32> l727;
    bit<32> l728;
    bit<32> l729;
    bit<32> l730;
    bit<32> l731;
    bit<32> l732;
    bit<32> l733;
    bit<32> l734;
    bit<32> l735;
    bit<32> l736;
    bit<32> l737;
    bit<32> l738;
    bit<32> l739;
    bit<32> l740;
    bit<32> l741;
    bit<32> l742;
    bit<32> l743;
    bit<32> l744;
    bit<32> l745;
    bit<32> l746;
    bit<32> l747;
    bit<32> l748;
    bit<32> l749;
    bit<32> l750;
    bit<32> l751;
    bit<32> l752;
    bit<32> l753;
    bit<32> l754;
    bit<32> l755;
    bit<32> l756;
    bit<32> l757;
    bit<32> l758;
    bit<32> l759;
    bit<32> l760;
    bit<32> l761;
    bit<32> l762;
    bit<32> l763;
    bit<32> l764;
    bit<32> l765;
    bit<32> l766;
    bit<32> l767;
    bit<32> l768;
    bit<32> l769;
    bit<32> l770;
    bit<32> l771;
    bit<32> l772;
    bit<32> l773;
    bit<32> l774;
    bit<32> l775;
    bit<32> l776;
    bit<32> l777;
    bit<32> l778;
    bit<32> l779;
    bit<32> l780;
    bit<32> l781;
    bit<32> l782;
    bit<32> l783;
    bit<32> l784;
    bit<32> l785;
    bit<32> l786;
    bit<32> l787;
    bit<32> l788;
    bit<32> l789;
    bit<32> l790;
    bit<32> l791;
    bit<32> l792;
    bit<32> l793;
    bit<32> l794;
    bit<32> l795;
    bit<32> l796;
    bit<32> l797;
    bit<32> l798;
    bit<32> l799;
    bit<32> l800;
    bit<32> l801;
    bit<32> l802;
    bit<32> l803;
    bit<32> l804;
    bit<32> l805;
    bit<32> l806;
    bit<32> l807;
    bit<32> l808;
    bit<32> l809;
    bit<32> l810;
    bit<32> l811;
    bit<32> l812;
    bit<32> l813;
    bit<32> l814;
    bit<32> l815;
    bit<32> l816;
    bit<32> l817;
    bit<32> l818;
    bit<32> l819;
    bit<32> l820;
    bit<32> l821;
    bit<32> l822;
    bit<32> l823;
    bit<32> l824;
    bit<32> l825;
    bit<32> l826;
    bit<32> l827;
    bit<32> l828;
    bit<32> l829;
    bit<32> l830;
    bit<32> l831;
    bit<32> l832;
    bit<32> l833;
    bit<32> l834;
    bit<32> l835;
    bit<32> l836;
    bit<32> l837;
    bit<32> l838;
    bit<32> l839;
    bit<32> l840;
    bit<32> l841;
    bit<32> l842;
    bit<32> l843;
    bit<32> l844;
    bit<32> l845;
    bit<32> l846;
    bit<32> l847;
    bit<32> l848;
    bit<32> l849;
    bit<32> l850;
    bit<32> l851;
    bit<32> l852;
    bit<32> l853;
    bit<32> l854;
    bit<32> l855;
    bit<32> l856;
    bit<32> l857;
    bit<32> l858;
    bit<32> l859;
    bit<32> l860;
    bit<32> l861;
    bit<32> l862;
    bit<32> l863;
    bit<32> l864;
    bit<32> l865;
    bit<32> l866;
    bit<32> l867;
    bit<32> l868;
    bit<32> l869;
    bit<32> l870;
    bit<32> l871;
    bit<32> l872;
    bit<32> l873;
    bit<32> l874;
    bit<32> l875;
    bit<32> l876;
    bit<32> l877;
    bit<32> l878;
    bit<32> l879;
    bit<32> l880;
    bit<32> l881;
    bit<32> l882;
    bit<32> l883;
    bit<32> l884;
    bit<32> l885;
    bit<32> l886;
    bit<32> l887;
    bit<32> l888;
    bit<32> l889;
    bit<32> l890;
    bit<32> l891;
    bit<32> l892;
    bit<32> l893;
    bit<32> l894;
    bit<32> l895;
    bit<32> l896;
    bit<32> l897;
    bit<32> l898;
    bit<32> l899;
    bit<32> l900;
    bit<32> l901;
    bit<32> l902;
    bit<32> l903;
    bit<32> l904;
    bit<32> l905;
    bit<32> l906;
    bit<32> l907;
    bit<32> l908;
    bit<32> l909;
    bit<32> l910;
    bit<32> l911;
    bit<32> l912;
    bit<32> l913;
    bit<32> l914;
    bit<32> l915;
    bit<32> l916;
    bit<32> l917;
    bit<32> l918;
    bit<32> l919;
    bit<32> l920;
    bit<32> l921;
    bit<32> l922;
    bit<32> l923;
    bit<32> l924;
    bit<32> l925;
    bit<32> l926;
    bit<32> l927;
    bit<32> l928;
    bit<32> l929;
    bit<32> l930;
    bit<32> l931;
    bit<32> l932;
    bit<32> l933;
    bit<32> l934;
    bit<32> l935;
    bit<32> l936;
    bit<32> l937;
    bit<32> l938;
    bit<32> l939;
    bit<32> l940;
    bit<32> l941;
    bit<32> l942;
    bit<32> l943;
    bit<32> l944;
    bit<32> l945;
    bit<32> l946;
    bit<32> l947;
    bit<32> l948;
    bit<32> l949;
    bit<32> l950;
    bit<32> l951;
    bit<32> l952;
    bit<32> l953;
    bit<32> l954;
    bit<32> l955;
    bit<32> l956;
    bit<32> l957;
    bit<32> l958;
    bit<32> l959;
    bit<32> l960;
    bit<32> l961;
    bit<32> l962;
    bit<32> l963;
    bit<32> l964;
    bit<32> l965;
    bit<32> l966;
    bit<32> l967;
    bit<32> l968;
    bit<32> l969;
    bit<32> l970;
    bit<32> l971;
    bit<32> l972;
    bit<32> l973;
    bit<32> l974;
    bit<32> l975;
    bit<32> l976;
    bit<32> l977;
    bit<32> l978;
    bit<32> l979;
    bit<32> l980;
    bit<32> l981;
    bit<32> l982;
    bit<32> l983;
    bit<32> l984;
    bit<32> l985;
    bit<32> l986;
    bit<32> l987;
    bit<32> l988;
    bit<32> l989;
    bit<32> l990;
    bit<32> l991;
    bit<32> l992;
    bit<32> l993;
    bit<32> l994;
    bit<32> l995;
    bit<32> l996;
    bit<32> l997;
    bit<32> l998;
    bit<32> l999;
    bit<32> l1000;
    bit<32> l1001;
    bit<32> l1002;
    bit<32> l1003;
    bit<32> l1004;
    bit<32> l1005;
    bit<32> l1006;
    bit<32> l1007;
    bit<32> l1008;
    bit<32> l1009;
    bit<32> l1010;
    bit<32> l1011;
    bit<32> l1012;
    bit<32> l1013;
    bit<32> l1014;
    bit<32> l1015;
    bit<32> l1016;
    bit<32> l1017;
    bit<32> l1018;
    bit<32> l1019;
    bit<32> l1020;
    bit<32> l1021;
    bit<32> l1022;
    bit<32> l1023;
}

#define EACH_WIDE_LANE(DO) \
    DO(l0) DO(l1) DO(l2) DO(l3) DO(l4) DO(l5) DO(l6) DO(l7) \
    DO(l8) DO(l9) DO(l10) DO(l11) DO(l12) DO(l13) DO(l14) DO(l15) \
    DO(l16) DO(l17) DO(l18) DO(l19) DO(l20) DO(l21) DO(l22) DO(l23) \
    DO(l24) DO(l25) DO(l26) DO(l27) DO(l28) DO(l29) DO(l30) DO(l31) \
    DO(l32) DO(l33) DO(l34) DO(l35) DO(l36) DO(l37) DO(l38) DO(l39) \
    DO(l40) DO(l41) DO(l42) DO(l43) DO(l44) DO(l45) DO(l46) DO(l47) \
    DO(l48) DO(l49) DO(l50) DO(l51) DO(l52) DO(l53) DO(l54) DO(l55) \
    DO(l56) DO(l57) DO(l58) DO(l59) DO(l60) DO(l61) DO(l62) DO(l63) \
    DO(l64) DO(l65) DO(l66) DO(l67) DO(l68) DO(l69) DO(l70) DO(l71) \
    DO(l72) DO(l73) DO(l74) DO(l75) DO(l76) DO(l77) DO(l78) DO(l79) \
    DO(l80) DO(l81) DO(l82) DO(l83) DO(l84) DO(l85) DO(l86) DO(l87) \
    DO(l88) DO(l89) DO(l90) DO(l91) DO(l92) DO(l93) DO(l94) DO(l95) \
    DO(l96) DO(l97) DO(l98) DO(l99) DO(l100) DO(l101) DO(l102) DO(l103) \
    DO(l104) DO(l105) DO(l106) DO(l107) DO(l108) DO(l109) DO(l110) DO(l111) \
    DO(l112) DO(l113) DO(l114) DO(l115) DO(l116) DO(l117) DO(l118) DO(l119) \
    DO(l120) DO(l121) DO(l122) DO(l123) DO(l124) DO(l125) DO(l126) DO(l127) \
    DO(l128) DO(l129) DO(l130) DO(l131) DO(l132) DO(l133) DO(l134) DO(l135) \
    DO(l136) DO(l137) DO(l138) DO(l139) DO(l140) DO(l141) DO(l142) DO(l143) \
    DO(l144) DO(l145) DO(l146) DO(l147) DO(l148) DO(l149) DO(l150) DO(l151) \
    DO(l152) DO(l153) DO(l154) DO(l155) DO(l156) DO(l157) DO(l158) DO(l159) \
    DO(l160) DO(l161) DO(l162) DO(l163) DO(l164) DO(l165) DO(l166) DO(l167) \
    DO(l168) DO(l169) DO(l170) DO(l171) DO(l172) DO(l173) DO(l174) DO(l175) \
    DO(l176) DO(l177) DO(l178) DO(l179) DO(l180) DO(l181) DO(l182) DO(l183) \
    DO(l184) DO(l185) DO(l186) DO(l187) DO(l188) DO(l189) DO(l190) DO(l191) \
    DO(l192) DO(l193) DO(l194) DO(l195) DO(l196) DO(l197) DO(l198) DO(l199) \
    DO(l200) DO(l201) DO(l202) DO(l203) DO(l204) DO(l205) DO(l206) DO(l207) \
    DO(l208) DO(l209) DO(l210) DO(l211) DO(l212) DO(l213) DO(l214) DO(l215) \
    DO(l216) DO(l217) DO(l218) DO(l219) DO(l220) DO(l221) DO(l222) DO(l223) \
    DO(l224) DO(l225) DO(l226) DO(l227) DO(l228) DO(l229) DO(l230) DO(l231) \
    DO(l232) DO(l233) DO(l234) DO(l235) DO(l236) DO(l237) DO(l238) DO(l239) \
    DO(l240) DO(l241) DO(l242) DO(l243) DO(l244) DO(l245) DO(l246) DO(l247) \
    DO(l248) DO(l249) DO(l250) DO(l251) DO(l252) DO(l253) DO(l254) DO(l255) \
    DO(l256) DO(l257) DO(l258) DO(l259) DO(l260) DO(l261) DO(l262) DO(l263) \
    DO(l264) DO(l265) DO(l266) DO(l267) DO(l268) DO(l269) DO(l270) DO(l271) \
    DO(l272) DO(l273) DO(l274) DO(l275) DO(l276) DO(l277) DO(l278) DO(l279) \
    DO(l280) DO(l281) DO(l282) DO(l283) DO(l284) DO(l285) DO(l286) DO(l287) \
    DO(l288) DO(l289) DO(l290) DO(l291) DO(l292) DO(l293) DO(l294) DO(l295) \
    DO(l296) DO(l297) DO(l298) DO(l299) DO(l300) DO(l301) DO(l302) DO(l303) \
    DO(l304) DO(l305) DO(l306) DO(l307) DO(l308) DO(l309) DO(l310) DO(l311) \
    DO(l312) DO(l313) DO(l314) DO(l315) DO(l316) DO(l317) DO(l318) DO(l319) \
    DO(l320) DO(l321) DO(l322) DO(l323) DO(l324) DO(l325) DO(l326) DO(l327) \
    DO(l328) DO(l329) DO(l330) DO(l331) DO(l332) DO(l333) DO(l334) DO(l335) \
    DO(l336) DO(l337) DO(l338) DO(l339) DO(l340) DO(l341) DO(l342) DO(l343) \
    DO(l344) DO(l345) DO(l346) DO(l347) DO(l348) DO(l349) DO(l350) DO(l351) \
    DO(l352) DO(l353) DO(l354) DO(l355) DO(l356) DO(l357) DO(l358) DO(l359) \
    DO(l360) DO(l361) DO(l362) DO(l363) DO(l364) DO(l365) DO(l366) DO(l367) \
    DO(l368) DO(l369) DO(l370) DO(l371) DO(l372) DO(l373) DO(l374) DO(l375) \
    DO(l376) DO(l377) DO(l378) DO(l379) DO(l380) DO(l381) DO(l382) DO(l383) \
    DO(l384) DO(l385) DO(l386) DO(l387) DO(l388) DO(l389) DO(l390) DO(l391) \
    DO(l392) DO(l393) DO(l394) DO(l395) DO(l396) DO(l397) DO(l398) DO(l399) \
    DO(l400) DO(l401) DO(l402) DO(l403) DO(l404) DO(l405) DO(l406) DO(l407) \
    DO(l408) DO(l409) DO(l410) DO(l411) DO(l412) DO(l413) DO(l414) DO(l415) \
    DO(l416) DO(l417) DO(l418) DO(l419) DO(l420) DO(l421) DO(l422) DO(l423) \
    DO(l424) DO(l425) DO(l426) DO(l427) DO(l428) DO(l429) DO(l430) DO(l431) \
    DO(l432) DO(l433) DO(l434) DO(l435) DO(l436) DO(l437) DO(l438) DO(l439) \
    DO(l440) DO(l441) DO(l442) DO(l443) DO(l444) DO(l445) DO(l446) DO(l447) \
    DO(l448) DO(l449) DO(l450) DO(l451) DO(l452) DO(l453) DO(l454) DO(l455) \
    DO(l456) DO(l457) DO(l458) DO(l459) DO(l460) DO(l461) DO(l462) DO(l463) \
    DO(l464) DO(l465) DO(l466) DO(l467) DO(l468) DO(l469) DO(l470) DO(l471) \
    DO(l472) DO(l473) DO(l474) DO(l475) DO(l476) DO(l477) DO(l478) DO(l479) \
    DO(l480) DO(l481) DO(l482) DO(l483) DO(l484) DO(l485) DO(l486) DO(l487) \
    DO(l488) DO(l489) DO(l490) DO(l491) DO(l492) DO(l493) DO(l494) DO(l495) \
    DO(l496) DO(l497) DO(l498) DO(l499) DO(l500) DO(l501) DO(l502) DO(l503) \
    DO(l504) DO(l505) DO(l506) DO(l507) DO(l508) DO(l509) DO(l510) DO(l511) \
    DO(l512) DO(l513) DO(l514) DO(l515) DO(l516) DO(l517) DO(l518) DO(l519) \
    DO(l520) DO(l521) DO(l522) DO(l523) DO(l524) DO(l525) DO(l526) DO(l527) \
    DO(l528) DO(l529) DO(l530) DO(l531) DO(l532) DO(l533) DO(l534) DO(l535) \
    DO(l536) DO(l537) DO(l538) DO(l539) DO(l540) DO(l541) DO(l542) DO(l543) \
    DO(l544) DO(l545) DO(l546) DO(l547) DO(l548) DO(l549) DO(l550) DO(l551) \
    DO(l552) DO(l553) DO(l554) DO(l555) DO(l556) DO(l557) DO(l558) DO(l559) \
    DO(l560) DO(l561) DO(l562) DO(l563) DO(l564) DO(l565) DO(l566) DO(l567) \
    DO(l568) DO(l569) DO(l570) DO(l571) DO(l572) DO(l573) DO(l574) DO(l575) \
    DO(l576) DO(l577) DO(l578) DO(l579) DO(l580) DO(l581) DO(l582) DO(l583) \
    DO(l584) DO(l585) DO(l586) DO(l587) DO(l588) DO(l589) DO(l590) DO(l591) \
    DO(l592) DO(l593) DO(l594) DO(l595) DO(l596) DO(l597) DO(l598) DO(l599) \
    DO(l600) DO(l601) DO(l602) DO(l603) DO(l604) DO(l605) DO(l606) DO(l607) \
    DO(l608) DO(l609) DO(l610) DO(l611) DO(l612) DO(l613) DO(l614) DO(l615) \
    DO(l616) DO(l617) DO(l618) DO(l619) DO(l620) DO(l621) DO(l622) DO(l623) \
    DO(l624) DO(l625) DO(l626) DO(l627) DO(l628) DO(l629) DO(l630) DO(l631) \
    DO(l632) DO(l633) DO(l634) DO(l635) DO(l636) DO(l637) DO(l638) DO(l639) \
    DO(l640) DO(l641) DO(l642) DO(l643) DO(l644) DO(l645) DO(l646) DO(l647) \
    DO(l648) DO(l649) DO(l650) DO(l651) DO(l652) DO(l653) DO(l654) DO(l655) \
    DO(l656) DO(l657) DO(l658) DO(l659) DO(l660) DO(l661) DO(l662) DO(l663) \
    DO(l664) DO(l665) DO(l666) DO(l667) DO(l668) DO(l669) DO(l670) DO(l671) \
    DO(l672) DO(l673) DO(l674) DO(l675) DO(l676) DO(l677) DO(l678) DO(l679) \
    DO(l680) DO(l681) DO(l682) DO(l683) DO(l684) DO(l685) DO(l686) DO(l687) \
    DO(l688) DO(l689) DO(l690) DO(l691) DO(l692) DO(l693) DO(l694) DO(l695) \
    DO(l696) DO(l697) DO(l698) DO(l699) DO(l700) DO(l701) DO(l702) DO(l703) \
    DO(l704) DO(l705) DO(l706) DO(l707) DO(l708) DO(l709) DO(l710) DO(l711) \
    DO(l712) DO(l713) DO(l714) DO(l715) DO(l716) DO(l717) DO(l718) DO(l719) \
    DO(l720) DO(l721) DO(l722) DO(l723) DO(l724) DO(l725) DO(l726) DO(l727) \
    DO(l728) DO(l729) DO(l730) DO(l731) DO(l732) DO(l733) DO(l734) DO(l735) \
    DO(l736) DO(l737) DO(l738) DO(l739) DO(l740) DO(l741) DO(l742) DO(l743) \
    DO(l744) DO(l745) DO(l746) DO(l747) DO(l748) DO(l749) DO(l750) DO(l751) \
    DO(l752) DO(l753) DO(l754) DO(l755) DO(l756) DO(l757) DO(l758) DO(l759) \
    DO(l760) DO(l761) DO(l762) DO(l763) DO(l764) DO(l765) DO(l766) DO(l767) \
    DO(l768) DO(l769) DO(l770) DO(l771) DO(l772) DO(l773) DO(l774) DO(l775) \
    DO(l776) DO(l777) DO(l778) DO(l779) DO(l780) DO(l781) DO(l782) DO(l783) \
    DO(l784) DO(l785) DO(l786) DO(l787) DO(l788) DO(l789) DO(l790) DO(l791) \
    DO(l792) DO(l793) DO(l794) DO(l795) DO(l796) DO(l797) DO(l798) DO(l799) \
    DO(l800) DO(l801) DO(l802) DO(l803) DO(l804) DO(l805) DO(l806) DO(l807) \
    DO(l808) DO(l809) DO(l810) DO(l811) DO(l812) DO(l813) DO(l814) DO(l815) \
    DO(l816) DO(l817) DO(l818) DO(l819) DO(l820) DO(l821) DO(l822) DO(l823) \
    DO(l824) DO(l825) DO(l826) DO(l827) DO(l828) DO(l829) DO(l830) DO(l831) \
    DO(l832) DO(l833) DO(l834) DO(l835) DO(l836) DO(l837) DO(l838) DO(l839) \
    DO(l840) DO(l841) DO(l842) DO(l843) DO(l844) DO(l845) DO(l846) DO(l847) \
    DO(l848) DO(l849) DO(l850) DO(l851) DO(l852) DO(l853) DO(l854) DO(l855) \
    DO(l856) DO(l857) DO(l858) DO(l859) DO(l860) DO(l861) DO(l862) DO(l863) \
    DO(l864) DO(l865) DO(l866) DO(l867) DO(l868) DO(l869) DO(l870) DO(l871) \
    DO(l872) DO(l873) DO(l874) DO(l875) DO(l876) DO(l877) DO(l878) DO(l879) \
    DO(l880) DO(l881) DO(l882) DO(l883) DO(l884) DO(l885) DO(l886) DO(l887) \
    DO(l888) DO(l889) DO(l890) DO(l891) DO(l892) DO(l893) DO(l894) DO(l895) \
    DO(l896) DO(l897) DO(l898) DO(l899) DO(l900) DO(l901) DO(l902) DO(l903) \
    DO(l904) DO(l905) DO(l906) DO(l907) DO(l908) DO(l909) DO(l910) DO(l911) \
    DO(l912) DO(l913) DO(l914) DO(l915) DO(l916) DO(l917) DO(l918) DO(l919) \
    DO(l920) DO(l921) DO(l922) DO(l923) DO(l924) DO(l925) DO(l926) DO(l927) \
    DO(l928) DO(l929) DO(l930) DO(l931) DO(l932) DO(l933) DO(l934) DO(l935) \
    DO(l936) DO(l937) DO(l938) DO(l939) DO(l940) DO(l941) DO(l942) DO(l943) \
    DO(l944) DO(l945) DO(l946) DO(l947) DO(l948) DO(l949) DO(l950) DO(l951) \
    DO(l952) DO(l953) DO(l954) DO(l955) DO(l956) DO(l957) DO(l958) DO(l959) \
    DO(l960) DO(l961) DO(l962) DO(l963) DO(l964) DO(l965) DO(l966) DO(l967) \
    DO(l968) DO(l969) DO(l970) DO(l971) DO(l972) DO(l973) DO(l974) DO(l975) \
    DO(l976) DO(l977) DO(l978) DO(l979) DO(l980) DO(l981) DO(l982) DO(l983) \
    DO(l984) DO(l985) DO(l986) DO(l987) DO(l988) DO(l989) DO(l990) DO(l991) \
    DO(l992) DO(l993) DO(l994) DO(l995) DO(l996) DO(l997) DO(l998) DO(l999) \
    DO(l1000) DO(l1001) DO(l1002) DO(l1003) DO(l1004) DO(l1005) DO(l1006) DO(l1007) \
    DO(l1008) DO(l1009) DO(l1010) DO(l1011) DO(l1012) DO(l1013) DO(l1014) DO(l1015) \
    DO(l1016) DO(l1017) DO(l1018) DO(l1019) DO(l1020) DO(l1021) DO(l1022) DO(l1023) \

#endif
